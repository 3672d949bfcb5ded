"""A command's options from a TOML file: `pluto train config.toml`. The command line wins over the file.

Keys are the options' names without dashes in front, or the arguments' names. A file is either one command's, or has
a table for each of several commands. Paths are as they would be on the command line.
"""

import argparse
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pluto_edge._text import did_you_mean
from pluto_edge.errors import ConfigError

SUFFIX = ".toml"


def apply(
    parser: argparse.ArgumentParser, file: Path, command: str, commands: Collection[str], given: Sequence[str]
) -> None:
    """What the file says becomes the default of every option that is not `given` on the command line."""
    actions = keys(parser)
    chosen: dict[argparse.Action, object] = {}
    for key, value in read(file, command, commands).items():
        action = actions.get(key.replace("_", "-"))
        if action is None:
            hint = did_you_mean(key, actions)
            raise ConfigError(f"{file}: `pluto {command}` has no option {key!r}{hint}")
        if value is False and action.nargs == 0 and not isinstance(action, argparse.BooleanOptionalAction):
            continue  # a switch that stays off
        chosen[action] = _convert(action, value, f"{file}: {key}")
    taken = {a for a in parser._actions if any(t.partition("=")[0] in a.option_strings for t in given)}
    for group in parser._mutually_exclusive_groups:
        members = set(group._group_actions)
        both = [a.option_strings[-1] for a in chosen if a in members]
        if len(both) > 1:
            raise ConfigError(f"{file}: {both[0]} and {both[1]}: one of the two")
        if both:
            group.required = False
        if members & taken:
            chosen = {a: v for a, v in chosen.items() if a not in members}
    for action, value in chosen.items():
        if action in taken:
            continue
        action.default, action.required = value, False
        if not action.option_strings:
            action.nargs = "*" if action.nargs in ("+", "*") else "?"


def keys(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """What a file may set; where an argument has a flag of the same name, too, it is the argument."""
    found: dict[str, argparse.Action] = {}
    for action in sorted(parser._actions, key=lambda a: bool(a.option_strings)):
        names = [n.removeprefix("--") for n in action.option_strings if n.startswith("--")] or [action.dest]
        if action.dest != "help":
            found = {names[0].replace("_", "-"): action} | found
    return found


def read(file: Path, command: str, commands: Collection[str]) -> Mapping[str, object]:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{file}: not valid TOML ({cause})") from cause
    tables = [key for key, value in data.items() if isinstance(value, dict)]
    for name in tables:
        if name not in commands:
            raise ConfigError(f"{file}: there is no command {name!r} for its table{did_you_mean(name, commands)}")
    if not tables:
        return data
    if len(tables) < len(data):
        key = next(key for key in data if key not in tables)
        raise ConfigError(f"{file}: {key}: is in no table; a file is one command's, or has a table for each")
    if command not in data:
        raise ConfigError(f"{file}: has no table [{command}]; there are: {', '.join(tables)}")
    table: Mapping[str, object] = data[command]
    return table


def _convert(action: argparse.Action, value: object, where: str) -> object:
    if isinstance(action, argparse.BooleanOptionalAction):
        return _want(value, bool, where, "true or false")
    if isinstance(action, argparse._CountAction):
        return _want(value, int, where, "a whole number")
    if action.nargs == 0:
        _want(value, bool, where, "true or false")
        return action.const
    if value is True and action.nargs == "?" and action.const is not None:
        return action.const
    if isinstance(action, argparse._AppendAction) or action.nargs in ("+", "*"):
        return [_one(action, item, where) for item in (value if isinstance(value, list) else [value])]
    if isinstance(value, list):  # as 1,8,64 on the command line
        return _one(action, ",".join(map(str, value)), where)
    return _one(action, value, where)


def _want(value: object, kind: type, where: str, what: str) -> object:
    if type(value) is not kind:
        raise ConfigError(f"{where}: want {what}, got {value!r}")
    return value


def _one(action: argparse.Action, value: object, where: str) -> object:
    if isinstance(value, bool | dict | list):
        raise ConfigError(f"{where}: want a value as on the command line, got {value!r}")
    try:
        converted = action.type(str(value)) if callable(action.type) else str(value)
    except (TypeError, ValueError) as cause:
        kind = getattr(action.type, "__name__", "value")
        raise ConfigError(f"{where}: want {kind}, got {value!r}") from cause
    if action.choices is not None and converted not in action.choices:
        hint = did_you_mean(str(converted), [str(c) for c in action.choices])
        raise ConfigError(f"{where}: want one of {', '.join(map(str, action.choices))}, got {value!r}{hint}")
    return converted
