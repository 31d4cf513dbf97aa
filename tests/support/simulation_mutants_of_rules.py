"""Rules of the queue and of the sweeper, each taken away."""

from __future__ import annotations

from typing import Final

from support.simulation_mutants import Mutant, mutant

__all__ = ["RULES"]


def _freed(due_at: str) -> tuple[str, str]:
    """A message that is due again, and the first held replay of its run is not."""
    store = f"message.due_at = {due_at} store_state(book, message)"
    member = "member_of(message.id, book.run)"
    enter = f"redis.call('ZADD', topic_key(base, topic, 'due'), {due_at}, {member})"
    return f"free(base, book, message, {due_at})", f"{store} {enter}"


RULES: Final[dict[str, Mutant]] = {
    # Which wakes are one.
    "a wake merges into one in back-off": mutant(
        "queue/retry",
        (
            "free(base, book, message, due_at)",
            (
                "free(base, book, message, due_at) "
                "if message.kind == 'wake' then put(book, 'wake', message_id) end"
            ),
        ),
        seed=1,
        operations=20,
        says="which was delivered",
    ),
    "a wake merges into a delayed one, and one with content": mutant(
        "lib/queue",
        (
            "if message.kind == 'wake' then\n      put(book, 'wake'",
            "if true then\n      put(book, 'wake'",
        ),
        seed=0,
        operations=20,
        says="which is no wake of it",
    ),
    "content is merged": mutant(
        "lib/queue",
        ("elseif message.kind == 'wake' then\n    local wake", "else\n    local wake"),
        seed=5,
        operations=20,
        says="is not of the content",
    ),
    "a wake absorbs after its delivery": mutant(
        "queue/claim",
        ("if message.kind == 'wake' and get(book, 'wake') == message.id then", "if false then"),
        seed=1,
        operations=20,
        says="which was delivered",
    ),
    "wakes of another queue name are absorbed": mutant(
        "lib/queue",
        ("queue == message.queue and ", ""),
        favoured=("send",),
        seed=7,
        operations=20,
        says="was merged into",
    ),
    "wakes with other headers are absorbed": mutant(
        "lib/queue",
        ("\n    and (bare or headers == message.headers)", ""),
        favoured=("send",),
        seed=10,
        operations=20,
        says="was merged into",
    ),
    "wakes for another deployment are absorbed": mutant(
        "lib/queue",
        (" and deployment == message.deployment", ""),
        favoured=("send",),
        seed=18,
        operations=20,
        says="was merged into",
    ),
    # One replay at a time.
    "two replays of a run are leased": mutant(
        "queue/claim",
        ("local waits = message.is_replay and", "local waits = false and"),
        seed=4,
        operations=20,
        says="has leased",
    ),
    "held stays held when a letter dies": mutant(
        "lib/queue",
        (
            ("owe_again(base, at, message)\n  end\n  unhold(base, book, message.id)\n"),
            "owe_again(base, at, message)\n  end\n",
        ),
        favoured=("retry",),
        seed=12,
        operations=20,
        says="and in truth",
    ),
    "held stays held after a retry": mutant(
        "queue/retry",
        _freed("due_at"),
        seed=1,
        operations=20,
        says="and in truth",
    ),
    "held stays held after a release": mutant(
        "queue/release",
        _freed("at"),
        seed=1,
        operations=20,
        says="and in truth",
    ),
    "held stays held after a postponement": mutant(
        "queue/postpone",
        _freed("due_at"),
        favoured=("postpone",),
        seed=1,
        operations=20,
        says="and in truth",
    ),
    "a postponed message counts its delivery": mutant(
        "queue/postpone",
        ("increased(message.attempt, -1)", "message.attempt"),
        favoured=("postpone",),
        seed=1,
        operations=20,
        says="msg_",
    ),
    "a postponed message is offered to whom it was declined by": mutant(
        "lib/declined",
        (" and not is_among(worker, decliners)", ""),
        favoured=("postpone",),
        seed=4,
        operations=20,
        says="early",
    ),
    "what is leased is still offered": mutant(
        "queue/claim",
        ("if #taken_postponed > 0 then", "if false then"),
        favoured=("postpone",),
        seed=1,
        operations=20,
        says="is offered in",
    ),
    "held stays held after an ack": mutant(
        "lib/queue",
        (
            (
                "owe_open_step(base, at, book.run, message.step)\n  end\n"
                "  unhold(base, book, message.id)\n"
            ),
            "owe_open_step(base, at, book.run, message.step)\n  end\n",
        ),
        seed=0,
        operations=20,
        says="and in truth",
    ),
    "held stays held after a lost lease": mutant(
        "lib/lease",
        _freed("at"),
        seed=3,
        operations=20,
        says="and in truth",
    ),
    # Keys and steps.
    "the own key is freed after the continuation is sent": mutant(
        "queue/ack",
        ("delete_record(book, message)\nsettle(base, book, message)\n", ""),
        (
            "close_delivery(base, at, book, message)",
            (
                "delete_record(book, message)\n"
                "settle(base, book, message)\n"
                "close_delivery(base, at, book, message)"
            ),
        ),
        favoured=("continue_",),
        seed=9,
        operations=20,
        says="which is over",
    ),
    "a step's message is known by its key only": mutant(
        "lib/queue",
        (
            "return named(base, book, 'step:' .. message.step)",
            "return nil",
        ),
        seed=7,
        operations=20,
        says="two messages of step",
    ),
    "a message of a step that is over is stored": mutant(
        "lib/queue",
        ("if is_closed then", "if false then"),
        favoured=("change_step", "create_step"),
        seed=2,
        operations=40,
        says="of a step that is over was stored",
    ),
    # Leases.
    "an old receipt is taken": mutant(
        "lib/queue",
        ("message.receipt == receipt and ", ""),
        seed=9,
        operations=160,
        says="an old receipt was taken",
    ),
    "the receipt outlives its lease": mutant(
        "lib/lease",
        (
            "message.lost, message.receipt = increased(message.lost, 1), '-'",
            "message.lost = increased(message.lost, 1)",
        ),
        seed=16,
        operations=40,
        says="is due and has the receipt",
    ),
    # Debts.
    "the sweeper looks at runs without a message only": mutant(
        "queue/stranded",
        ("describe_oldest(owed)", "{}"),
        favoured=("change_hook", "create_hook"),
        says="owed a wake, and not woken",
        seed=13,
        operations=80,
    ),
    "hook_received has no outbox, and leaves no debt": mutant(
        "events/hook_received",
        ("send_wake_along(base, at, outbox, run_id)", "''"),
        favoured=("change_hook", "create_hook"),
        seed=1,
        operations=20,
        says="was not stored",
    ),
    "hook_received leaves no debt": mutant(
        "events/hook_received",
        ("  note_wake(base, at, run_id, state)\n", ""),
        ("send_wake_along(base, at, outbox, run_id)", "(send_along(base, at, outbox))"),
        favoured=("change_hook", "create_hook"),
        seed=17,
        operations=160,
        says="nothing will bring it one",
    ),
    "run_created leaves no debt": mutant(
        "events/run_created",
        ("hash, outbox == '')", "hash, false)"),
        ("send_wake_along(base, at, outbox, run_id)", "send_along(base, at, outbox)"),
        seed=0,
        operations=20,
        says="nothing will bring it one",
    ),
    "the end of a step leaves no debt": mutant(
        "lib/step",
        ("      note_wake(base, at, run_id, state)\n", ""),
        ("return send_wake_along(base, at, outbox, run_id, step_id, step)", "return ''"),
        seed=0,
        operations=20,
        says="nothing will bring it one",
    ),
    "any message of an event pays its debt": mutant(
        "lib/outbox",
        ("and not wakes then", "and sent == '' then"),
        seed=2,
        operations=20,
        says="nothing will bring it one",
    ),
    "step_created leaves no debt": mutant(
        "events/step_created",
        ("  note_step(base, run_id, state, correlation_id, created)\n", ""),
        seed=0,
        operations=20,
        says="nobody will run it",
    ),
    "the ack of a step's message leaves no debt": mutant(
        "lib/queue",
        ("owe_open_step(base, at, book.run, message.step)\n  end\n", "end\n"),
        favoured=("ack", "create_step"),
        seed=6,
        operations=20,
        says="nobody will run it",
    ),
    "a replay that dies leaves no debt": mutant(
        "lib/queue",
        ("owe_wake(base, at, message.run)", ""),
        favoured=("retry",),
        seed=12,
        operations=20,
        says="nothing will bring it one",
    ),
    "a step's message that dies leaves no debt": mutant(
        "lib/queue",
        ("owe_open_step(base, at, message.run, message.step)\n  elseif", "elseif"),
        favoured=("retry", "create_step", "purge"),
        seed=1,
        operations=80,
        says="nobody will run it",
    ),
    "the begin of a replay pays no debt": mutant(
        "queue/claim",
        ("forgive_wake(base, at, message.run)", ""),
        favoured=("sweep", "pass_time"),
        seed=5,
        operations=20,
        says="was woken, and owed no wake",
    ),
    "a delayed replay pays the debt": mutant(
        "lib/queue",
        ("wakes = message.due_at == at", "wakes = true"),
        seed=2,
        operations=20,
        says="nothing will bring it one",
    ),
    "the sweeper wakes a run beside its leased replay": mutant(
        "queue/pay_wake",
        (
            "if is_named or redis.call('EXISTS', held) == 1 or has_replay(at) then",
            "if false then",
        ),
        favoured=("sweep", "extend", "change_step"),
        seed=8,
        operations=20,
        says="was woken, and has the replay",
    ),
    "the sweeper wakes a run whose replay is due again": mutant(
        "queue/pay_wake",
        (" or has_replay(at) then", " then"),
        favoured=("sweep", "die", "change_hook"),
        seed=2,
        operations=20,
        says="was woken, and has the replay",
    ),
    "the sweeper wakes a run that has a dead letter": mutant(
        "queue/pay_wake",
        ("if count_of(book, 'dead') > 0 then", "if false then"),
        favoured=("claim", "retry", "pass_time", "sweep"),
        seed=12,
        operations=40,
        says="was rescued and has dead letters",
    ),
    "the sweeper queues a step of a run that has a dead letter": mutant(
        "queue/pay_step",
        ("if count_of(open_run(base, run_id), 'dead') > 0 then", "if false then"),
        favoured=("claim", "retry", "pass_time", "sweep", "create_step"),
        seed=0,
        operations=160,
        says="was rescued and has dead letters",
    ),
    "the sweeper pays without waiting": Mutant(
        (
            ("queue/stranded", "later(now(), -interval)", "now()"),
            ("lib/rescue", " and tonumber(since) <= tonumber(at) - tonumber(interval)", ""),
        ),
        seed=0,
        operations=20,
        says="was woken after",
    ),
    # Runs without a message.
    "a run that is woken in vain does not rest": mutant(
        "queue/unpark",
        ("if rest > 0 then", "if false then"),
        favoured=("sweep", "pass_time", "claim", "ack"),
        seed=0,
        operations=20,
        says="was woken in vain, and again after",
    ),
    "a run whose last message ends is not parked": mutant(
        "lib/queue",
        ("park(base, at, book.run)", "local _ = at"),
        seed=0,
        operations=20,
        says="and is not parked",
    ),
    "a new run is not parked": mutant(
        "lib/create_run",
        ("if (outstanding or 0) <= 0 then", "if false then"),
        seed=0,
        operations=20,
        says="and is not parked",
    ),
    "a run with a message stays parked": mutant(
        "lib/queue",
        ("redis.call('ZREM', parked_key(base), book.run)", ""),
        seed=0,
        operations=20,
        says="and is parked",
    ),
    "a run that waits for a hook is woken": mutant(
        "queue/unpark",
        (" or redis.call('EXISTS', hooks) == 1", ""),
        favoured=("create_hook", "sweep", "pass_time"),
        seed=1,
        operations=20,
        says="waits for hooks, and was woken",
    ),
    "a parked run with a dead letter is woken": mutant(
        "queue/unpark",
        ("count_of(book, 'dead') > 0 or ", ""),
        favoured=("claim", "retry", "pass_time", "sweep"),
        seed=12,
        operations=40,
        says="was rescued and has dead letters",
    ),
    "the bookkeeping of a finished run stays": mutant(
        "lib/queue",
        ("    delete_book(book)", "    local _ = book"),
        seed=0,
        operations=20,
        says="but bookkeeping",
    ),
}
