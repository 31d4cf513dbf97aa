"""Scripts from which one rule was taken away."""

from __future__ import annotations

from dataclasses import dataclass

from redis_world.lua import ScriptLibrary, script_root
from redis_world.testing import ManualClock

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule less.

    Attributes:
        changes: libraries or scripts, a text that is in each exactly once, and what takes its
            place.
        seed: of a simulation that finds it
        operations: within so many operations, and the end behind them.
        favoured: operations that happen more often there.
        says: what the simulation says of it, among other things.
    """

    changes: tuple[tuple[str, str, str], ...]
    seed: int
    operations: int
    favoured: tuple[str, ...] = ()
    says: str = ""

    def library(self) -> ScriptLibrary:
        """The scripts without the rule, on a manual clock."""
        clocked = ManualClock.library()
        texts = dict(clocked._overrides)
        for file, old, new in self.changes:
            text = texts.get(file) or clocked._read(file, ())
            assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
            texts[file] = text.replace(old, new)
        return ScriptLibrary(script_root(), texts)


def _mutant(
    file: str,
    *changes: tuple[str, str],
    seed: int,
    operations: int,
    favoured: tuple[str, ...] = (),
    says: str = "",
) -> Mutant:
    return Mutant(tuple((file, *change) for change in changes), seed, operations, favoured, says)


MUTANTS = {
    # Which wakes are one.
    "a wake merges into one in back-off": _mutant(
        "queue/retry",
        (
            "release(base, ended.run, message_id)",
            (
                "release(base, ended.run, message_id) if ended.kind == 'wake' then "
                "redis.call('HSET', run_queue_key(base, ended.run), 'wake', message_id) end"
            ),
        ),
        seed=9,
        operations=20,
    ),
    "a wake merges into a delayed one, and one with content": _mutant(
        "lib/queue",
        (
            "if message.kind == 'wake' then\n        redis.call('HSET'",
            "if true then\n        redis.call('HSET'",
        ),
        seed=0,
        operations=20,
    ),
    "content is merged": _mutant(
        "lib/queue",
        ("elseif message.kind == 'wake' then\n    local wake", "else\n    local wake"),
        seed=19,
        operations=80,
    ),
    "a wake absorbs after its delivery": _mutant(
        "queue/claim",
        ("redis.call('HDEL', bookkeeping, 'wake')", ""),
        seed=1,
        operations=20,
    ),
    "wakes of another queue name are absorbed": _mutant(
        "lib/queue",
        ("fields[1] == message.queue and ", ""),
        favoured=("send",),
        seed=9,
        operations=20,
    ),
    # One replay at a time.
    "two replays of a run are leased": _mutant(
        "queue/claim",
        ("if is_replay and serialize ~= '' and", "if false and"),
        seed=4,
        operations=20,
    ),
    "held stays held when a letter dies": _mutant(
        "lib/queue",
        ("release(base, message.run, message_id)", ""),
        favoured=("retry",),
        seed=6,
        operations=40,
    ),
    "held stays held after a retry": _mutant(
        "queue/retry",
        ("release(base, ended.run, message_id)", ""),
        seed=9,
        operations=20,
    ),
    "held stays held after a give back": _mutant(
        "queue/give_back",
        ("release(base, ended.run, message_id)", ""),
        seed=4,
        operations=20,
    ),
    "held stays held after an ack": _mutant(
        "queue/ack",
        ("release(base, ended.run, message_id)", ""),
        seed=2,
        operations=20,
    ),
    "held stays held after a lost lease": _mutant(
        "lib/lease",
        ("release(base, message.run, message_id)", ""),
        seed=1,
        operations=20,
    ),
    # Keys and steps.
    "the own key is freed after the continuation is sent": _mutant(
        "queue/ack",
        ("settle(base, topic, message_id, ended)", ""),
        (
            "if ended.kind == 'step' then",
            "settle(base, topic, message_id, ended)\nif ended.kind == 'step' then",
        ),
        favoured=("continue_",),
        seed=18,
        operations=20,
    ),
    "a step's message is known by its key only": _mutant(
        "lib/queue",
        (
            "return redis.call('HGET', bookkeeping, 'step:' .. message.step)",
            "return nil",
        ),
        seed=7,
        operations=20,
    ),
    "a message of a step that is over is stored": _mutant(
        "lib/queue",
        ("if is_terminal(redis.call('HGET', step, 'status')) then", "if false then"),
        favoured=("change_step", "create_step"),
        seed=3,
        operations=20,
    ),
    # Leases.
    "an old receipt is taken": _mutant(
        "lib/queue",
        ("fields.receipt == receipt and ", ""),
        seed=2,
        operations=80,
    ),
    "the receipt outlives its lease": _mutant(
        "lib/lease",
        ("redis.call('HDEL', key, 'receipt')", ""),
        seed=6,
        operations=20,
    ),
    # Debts.
    "the sweeper looks at runs without a message only": _mutant(
        "queue/stranded",
        ("ipairs(oldest(owed))", "ipairs({})"),
        favoured=("change_hook", "create_hook"),
        says="owed a wake, and not woken",
        seed=11,
        operations=20,
    ),
    "hook_received has no outbox, and leaves no debt": _mutant(
        "events/hook_received",
        ("send_wake_along(base, at, outbox, run_id)", "''"),
        favoured=("change_hook", "create_hook"),
        seed=10,
        operations=20,
    ),
    "hook_received leaves no debt": _mutant(
        "events/hook_received",
        ("send_wake_along(base, at, outbox, run_id)", "(send_along(base, at, outbox))"),
        favoured=("change_hook", "create_hook"),
        seed=3,
        operations=20,
    ),
    "run_created leaves no debt": _mutant(
        "events/run_created",
        ("send_wake_along(base, at, outbox, run_id)", "send_along(base, at, outbox)"),
        seed=0,
        operations=20,
    ),
    "the end of a step leaves no debt": _mutant(
        "lib/step",
        ("is_terminal(run_status) and send_along or send_wake_along", "send_along"),
        seed=0,
        operations=20,
    ),
    "any message of an event pays its debt": _mutant(
        "lib/outbox",
        ("if not wakes then", "if sent == '' then"),
        seed=2,
        operations=20,
    ),
    "step_created leaves no debt": _mutant(
        "events/step_created",
        ("owe_step(base, at, run_id, correlation_id)", ""),
        seed=1,
        operations=20,
    ),
    "the ack of a step's message leaves no debt": _mutant(
        "queue/ack",
        ("owe_open_step(base, at, ended.run, ended.step)", ""),
        favoured=("ack", "create_step"),
        seed=15,
        operations=20,
    ),
    "a replay that dies leaves no debt": _mutant(
        "lib/queue",
        ("owe_wake(base, at, message.run)", ""),
        favoured=("retry",),
        seed=6,
        operations=40,
    ),
    "a step's message that dies leaves no debt": _mutant(
        "lib/queue",
        ("owe_open_step(base, at, message.run, message.step)", ""),
        favoured=("retry", "create_step"),
        seed=6,
        operations=80,
    ),
    "the begin of a replay pays no debt": _mutant(
        "queue/claim",
        ("redis.call('ZREM', owed_key(base), run_id)", ""),
        favoured=("sweep", "pass_time"),
        seed=1,
        operations=20,
    ),
    "a delayed replay pays the debt": _mutant(
        "lib/queue",
        ("wakes = message.due_at == at", "wakes = true"),
        seed=0,
        operations=20,
    ),
    "the sweeper wakes a run beside its leased replay": _mutant(
        "queue/pay_wake",
        (
            "elseif state.wake or state.leased or redis.call('EXISTS', held) == 1 then",
            "elseif false then",
        ),
        favoured=("sweep", "extend", "change_step"),
        seed=3,
        operations=80,
    ),
    "the sweeper wakes a run that has a dead letter": _mutant(
        "queue/pay_wake",
        ("if state.dead > 0 then", "if false then"),
        favoured=("claim", "retry", "pass_time", "sweep"),
        seed=3,
        operations=80,
    ),
    "the sweeper queues a step of a run that has a dead letter": _mutant(
        "queue/pay_step",
        ("elseif load_bookkeeping(base, run_id).dead > 0 then", "elseif false then"),
        favoured=("claim", "retry", "pass_time", "sweep", "create_step"),
        seed=18,
        operations=40,
    ),
    "the sweeper pays without waiting": Mutant(
        (
            ("queue/stranded", "later(now(), -interval)", "now()"),
            ("lib/rescue", " and tonumber(since) <= tonumber(at) - tonumber(interval)", ""),
        ),
        seed=2,
        operations=20,
    ),
    # Runs without a message.
    "a run whose last message ends is not parked": _mutant(
        "lib/queue",
        ("park(base, at, run_id)", "local _ = at"),
        seed=2,
        operations=20,
    ),
    "a new run is not parked": _mutant(
        "lib/debt",
        ("park(base, at, run_id)\n  end", "local _ = at\n  end"),
        seed=0,
        operations=20,
    ),
    "a run with a message stays parked": _mutant(
        "lib/queue",
        ("redis.call('ZREM', parked_key(base), message.run)", ""),
        seed=0,
        operations=20,
    ),
    "a run that waits for a hook is woken": _mutant(
        "queue/unpark",
        (" or redis.call('EXISTS', hooks) == 1", ""),
        favoured=("create_hook", "sweep", "pass_time"),
        seed=1,
        operations=20,
    ),
    "a parked run with a dead letter is woken": _mutant(
        "queue/unpark",
        ("state.dead > 0 or ", ""),
        favoured=("claim", "retry", "pass_time", "sweep"),
        seed=3,
        operations=80,
    ),
    "the bookkeeping of a finished run stays": _mutant(
        "lib/queue",
        ("redis.call('DEL', bookkeeping)", "local _ = bookkeeping"),
        seed=0,
        operations=20,
    ),
    # Requests that are sent again.
    "a claim that is sent again is another claim": _mutant(
        "queue/claim",
        ("  if resend ~= '' then", "  if false then"),
        seed=8,
        operations=20,
    ),
    "a retry that is sent again has lost its lease": _mutant(
        "queue/retry",
        ("if not ended and changed_by(message, op) then", "if false then"),
        favoured=("retry",),
        seed=12,
        operations=20,
    ),
    "a give back that is sent again has lost its lease": _mutant(
        "queue/give_back",
        ("changed_by(message, op) and { 'OK' } or ", ""),
        seed=8,
        operations=20,
    ),
    "an ack that is sent again has lost its lease": _mutant(
        "queue/ack",
        ("if resend ~= '' and", "if false and"),
        seed=3,
        operations=20,
    ),
    "a send that is sent again is another send": _mutant(
        "lib/queue",
        (
            "if redis.call('EXISTS', message_key(base, topic, message.id)) == 1 then",
            "if false then",
        ),
        seed=4,
        operations=20,
    ),
    "a purge that is sent again has deleted nothing": _mutant(
        "queue/purge",
        ("elseif resend ~= '' and", "elseif false and"),
        favoured=("retry", "purge"),
        seed=0,
        operations=160,
    ),
    "a redrive that is sent again finds nothing": _mutant(
        "queue/redrive",
        ("if changed_by(message, op) then", "if false then"),
        favoured=("retry", "redrive"),
        seed=19,
        operations=320,
    ),
    "an event that is sent again is recorded twice": _mutant(
        "events/hook_received",
        ("  if own then", "  if false then"),
        favoured=("create_hook", "change_hook"),
        seed=14,
        operations=40,
    ),
    "an end of a step that is sent again is refused": _mutant(
        "lib/step",
        ("    if not own then\n      return refusal", "    if true then\n      return refusal"),
        seed=1,
        operations=20,
    ),
}
