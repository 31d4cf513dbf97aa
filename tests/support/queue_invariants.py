"""What must hold between the keys of the queue after every call, judged from the raw keys."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import redis

REPLAYS: Final = {b"wake", b"replay"}
PLACES: Final = ("due", "leased", "held", "dead")
OUTSTANDING: Final = {"due", "leased", "held"}

Fields = dict[bytes, bytes]


class QueueState:
    """The keys of one namespace's queue, read in two round trips."""

    def __init__(self, client: redis.Redis, base: str) -> None:
        self.base = base
        keys = sorted(key.decode() for key in client.scan_iter(f"{_glob(base)}*", count=1000))
        pipeline = client.pipeline(transaction=False)
        read: list[tuple[str, ...]] = []
        for key in keys:
            rest = key.removeprefix(base)
            if rest.startswith("queue:"):
                _, topic, kind, *more = rest.split(":", 3)
                read.append((kind, topic, *more))
            elif rest.startswith("run:") and rest.endswith((":queue", ":held")):
                _, run, kind = rest.split(":")
                read.append((f"run {kind}", unquote_to_bytes(run).decode()))
            else:
                continue
            match read[-1][0]:
                case "due" | "leased" | "held" | "dead" | "run held":
                    pipeline.zrange(key, 0, -1, withscores=True)
                case "key":
                    pipeline.get(key)
                case _:
                    pipeline.hgetall(key)
        self.messages: dict[str, Fields] = {}
        self.topic_of: dict[str, str] = {}
        self.places: defaultdict[str, list[str]] = defaultdict(list)
        """Message id to the sets that it lies in."""
        self.scores: dict[tuple[str, str], float] = {}
        self.keys: dict[tuple[str, str, str], str] = {}
        """Topic, run and key, the latter two escaped, to the message that holds it."""
        self.bookkeeping: dict[str, Fields] = {}
        self.held_of_run: dict[str, dict[str, float]] = {}
        for (kind, name, *more), value in zip(read, pipeline.execute(), strict=True):
            self._take(kind, name, more, value)

    def _take(self, kind: str, name: str, more: list[str], value: Any) -> None:
        match kind:
            case "due" | "leased" | "held" | "dead":
                for member, score in value:
                    self.places[member.decode()].append(kind)
                    self.scores[kind, member.decode()] = score
            case "message":
                self.messages[more[0]] = value
                self.topic_of[more[0]] = name
            case "key":
                run, _, key = more[0].partition("/")
                self.keys[name, run, key] = value.decode()
            case "run queue":
                self.bookkeeping[name] = value
            case "run held":
                self.held_of_run[name] = {m.decode(): score for m, score in value}
            case _:
                raise AssertionError(f"nobody knows the key queue:{name}:{kind}")

    def violations(self, *, serialized: bool = True) -> list[str]:
        """Everything that is not as it must be."""
        return [
            *self._of_places(),
            *self._of_messages(),
            *self._of_keys(),
            *self._of_runs(serialized=serialized),
        ]

    def place(self, message_id: str) -> str:
        return self.places[message_id][0]

    def is_outstanding(self, message_id: str) -> bool:
        return bool(OUTSTANDING & {*self.places.get(message_id, [])})

    def _of_places(self) -> list[str]:
        wrong = []
        for message_id in {*self.places, *self.messages}:
            places = self.places.get(message_id, [])
            if len(places) != 1 or message_id not in self.messages:
                stored = "stored" if message_id in self.messages else "not stored"
                wrong.append(f"{message_id} lies in {places} and is {stored}")
        return wrong

    def _of_messages(self) -> list[str]:
        wrong = []
        for message_id, fields in self.messages.items():
            place = self.places.get(message_id, ["nowhere"])[0]
            if (b"receipt" in fields) != (place == "leased"):
                wrong.append(f"{message_id} is {place}, receipt {fields.get(b'receipt')!r}")
            if (b"reason" in fields) != (place == "dead"):
                wrong.append(f"{message_id} is {place}, reason {fields.get(b'reason')!r}")
            if int(fields[b"attempt"]) < int(fields[b"failures"]) + int(fields[b"lost"]):
                wrong.append(f"{message_id} has more ends than deliveries: {fields}")
            due_at = float(fields[b"due_at"])
            if place in {"due", "held"} and self.scores[place, message_id] != due_at:
                wrong.append(f"{message_id} is {place} at another time than its due_at")
        return wrong

    def _of_keys(self) -> list[str]:
        wrong = []
        for (topic, run, key), holder in self.keys.items():
            fields = self.messages.get(holder, {})
            named = (fields.get(b"run"), fields.get(b"key"), self.topic_of.get(holder))
            if named != (unquote_to_bytes(run), unquote_to_bytes(key), topic):
                wrong.append(f"key {run}/{key} of {topic} names {holder}, of {named}")
            if not self.is_outstanding(holder):
                wrong.append(f"key {run}/{key} is held by {holder}, which is over")
        held = {*self.keys.values()}
        for message_id, fields in self.messages.items():
            if fields[b"key"] and self.is_outstanding(message_id) and message_id not in held:
                wrong.append(f"{message_id} is outstanding and its key is free")
        return wrong

    def _of_runs(self, *, serialized: bool) -> list[str]:
        wrong: list[str] = []
        counts: Counter[str] = Counter()
        dead: Counter[str] = Counter()
        leased: defaultdict[str, list[str]] = defaultdict(list)
        held: defaultdict[str, dict[str, float]] = defaultdict(dict)
        due: Counter[str] = Counter()
        steps: defaultdict[tuple[str, bytes], list[str]] = defaultdict(list)
        for message_id, fields in self.messages.items():
            run = fields[b"run"].decode()
            if not run:
                if self.place(message_id) == "held":
                    wrong.append(f"{message_id} has no run and is held")
                continue
            place = self.place(message_id)
            counts[run] += place in OUTSTANDING
            dead[run] += place == "dead"
            if fields[b"kind"] == b"step" and place in OUTSTANDING:
                steps[run, fields[b"step"]].append(message_id)
            if fields[b"kind"] in REPLAYS:
                due[run] += place == "due"
                if place == "leased":
                    leased[run].append(message_id)
            if place == "held":
                member = f"{self.topic_of[message_id]}/{message_id}"
                held[run][member] = self.scores["held", message_id]
                if fields[b"kind"] not in REPLAYS:
                    wrong.append(f"{message_id} is held and no replay")

        for run in {*counts, *dead, *self.bookkeeping, *self.held_of_run}:
            fields = self.bookkeeping.get(run, {})
            if int(fields.get(b"n", b"0")) != counts[run]:
                wrong.append(f"{run}: n is {fields.get(b'n')!r}, outstanding are {counts[run]}")
            if int(fields.get(b"dead", b"0")) != dead[run]:
                wrong.append(f"{run}: dead is {fields.get(b'dead')!r}, in truth {dead[run]}")
            if self.held_of_run.get(run, {}) != held[run]:
                wrong.append(f"{run}: held is {self.held_of_run.get(run)}, in truth {held[run]}")
            if serialized:
                named = [fields[b"leased"].decode()] if b"leased" in fields else []
                if named != leased[run]:
                    wrong.append(f"{run}: leased is {named}, in truth {leased[run]}")
                if held[run] and not leased[run] and not due[run]:
                    wrong.append(f"{run}: {len(held[run])} are held and nothing will free them")
            wrong += self._of_wake(run, fields)
            named_steps = {
                name.removeprefix(b"step:"): value.decode()
                for name, value in fields.items()
                if name.startswith(b"step:")
            }
            real = {step: ids for (owner, step), ids in steps.items() if owner == run}
            if {step: [message_id] for step, message_id in named_steps.items()} != real:
                wrong.append(f"{run}: steps are {named_steps}, in truth {real}")
        return wrong

    def _of_wake(self, run: str, fields: Fields) -> list[str]:
        if b"wake" not in fields:
            return []
        wake = fields[b"wake"].decode()
        message = self.messages.get(wake)
        if message is None or message[b"kind"] != b"wake" or message[b"run"].decode() != run:
            return [f"{run}: wake is {wake}, which is no wake of it"]
        undelivered = (message[b"attempt"], message[b"failures"], message[b"lost"])
        if undelivered != (b"0", b"0", b"0") or self.place(wake) not in {"due", "held"}:
            return [f"{run}: wake is {wake}, which was delivered"]
        if message[b"due_at"] != message[b"enqueued_at"]:
            return [f"{run}: wake is {wake}, which was delayed"]
        return []


def _glob(text: str) -> str:
    return text.replace("{", "[{]").replace("}", "[}]")
