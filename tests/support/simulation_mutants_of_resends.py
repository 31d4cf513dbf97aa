"""What lets a request that is sent again find its first run, each taken away."""

from __future__ import annotations

from typing import Final

from support.simulation_mutants import Mutant, mutant

__all__ = ["RESENDS"]

RESENDS: Final[dict[str, Mutant]] = {
    "a claim that is sent again is another claim": mutant(
        "queue/claim",
        ("  if resend ~= '' then", "  if false then"),
        seed=17,
        operations=20,
        says="were leased, and then",
    ),
    "a retry that is sent again has lost its lease": mutant(
        "queue/retry",
        ("local changed = changed_by(book, message_id, op)", "local changed = false"),
        favoured=("retry",),
        seed=11,
        operations=20,
        says="the lease was lost",
    ),
    "a release that is sent again has lost its lease": mutant(
        "queue/release",
        ("changed_by(book, message_id, op) and { 'OK' } or ", ""),
        seed=6,
        operations=40,
        says="False after OK",
    ),
    "a postponement that is sent again has lost its lease": mutant(
        "queue/postpone",
        ("changed_by(book, message_id, op) and { 'OK' } or ", ""),
        favoured=("postpone",),
        seed=10,
        operations=20,
        says="False after OK",
    ),
    "an ack that is sent again has lost its lease": mutant(
        "queue/ack",
        ("if resend ~= '' and", "if false and"),
        seed=14,
        operations=20,
        says="False after OK",
    ),
    "a send that is sent again is another send": mutant(
        "lib/queue",
        (
            "read_message(book, message.id) and message.id\n    or standing(",
            "standing(",
        ),
        seed=2,
        operations=20,
        says="has n",
    ),
    "a purge that is sent again has deleted nothing": mutant(
        "queue/purge",
        ("elseif resend ~= '' and", "elseif false and"),
        favoured=("retry", "purge"),
        seed=0,
        operations=80,
        says="0 of",
    ),
    "a redrive that is sent again finds nothing": mutant(
        "queue/redrive",
        ("if changed_by(book, message_id, op) then", "if false then"),
        favoured=("retry", "redrive"),
        seed=0,
        operations=80,
        says="was not found",
    ),
    "an event that is sent again is recorded twice": mutant(
        "events/hook_received",
        ("  if own then", "  if false then"),
        favoured=("create_hook", "change_hook"),
        seed=10,
        operations=40,
        says=", then evnt_",
    ),
    "an end of a step that is sent again is refused": mutant(
        "events/step_completed",
        ("return answer_end_again(", "return refusal or answer_end_again("),
        seed=10,
        operations=20,
        says="OK, and then None",
    ),
}
