"""`pluto completion`: a script that completes commands and options in a shell."""

import argparse
from collections.abc import Iterable
from typing import NamedTuple

from pluto_edge.cli.parsing import Parser

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print a script that completes `pluto` in a shell: commands, options and what they may be."
    parser.epilog = (
        "to have it in every new shell:\n"
        "  pluto completion bash > ~/.local/share/bash-completion/completions/pluto\n"
        "  pluto completion zsh >> ~/.zshrc\n"
        "  pluto completion fish > ~/.config/fish/completions/pluto.fish\n"
        "\n"
        "here and now, in bash: source <(pluto completion bash)"
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def run(options: argparse.Namespace) -> int:
    from pluto_edge.cli import COMMANDS, command_parser

    options_of = {name: _options(command_parser(name)[1]) for name in COMMANDS}
    write = {"bash": bash, "zsh": zsh, "fish": fish}[options.shell]
    print(write(COMMANDS, options_of))
    return 0


class Option(NamedTuple):
    """One option: how it is written, what it may be (nothing where it is anything), whether it wants a value."""

    names: tuple[str, ...]
    choices: tuple[str, ...]
    value: bool
    help: str


def _options(parser: Parser) -> list[Option]:
    known = [action.option_strings for action in parser._actions]
    return [
        Option(
            tuple(action.option_strings),
            tuple(map(str, action.choices or ())),
            action.nargs != 0,
            (action.help or "").partition("(")[0].partition(";")[0].strip(),
        )
        for one in (parser, *parser.actions.values())
        for action in one._actions
        if one is parser or action.option_strings not in known
    ]


def bash(commands: dict[str, str], options: dict[str, list[Option]]) -> str:
    """Files where nothing else fits, as bash does without a script."""
    words = "\n".join(f'    {name}) words="{_words(o.names for o in found)}" ;;' for name, found in options.items())
    values = "\n".join(
        f'    {name}:{flag}) words="{" ".join(o.choices)}" ;;'
        for name, found in options.items()
        for o in found
        for flag in o.names or ("",)
        if o.choices
    )
    return f"""_pluto() {{
  local words command current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" at=1
  COMPREPLY=()
  command="${{COMP_WORDS[1]}}"
  if [[ "${{COMP_WORDS[0]##*/}}" == pluto-export ]]; then command=export at=0; fi
  if (( COMP_CWORD <= at )); then
    COMPREPLY=( $(compgen -W "{" ".join(commands)} --help --version" -- "$current") )
    return
  fi
  [[ "$before" == -* ]] || before=""
  case "$command:$before" in
{values}
    *) words="" ;;
  esac
  if [[ -z "$words" && "$current" == -* ]]; then
    case "$command" in
{words}
    esac
  fi
  [[ -n "$words" ]] && COMPREPLY=( $(compgen -W "$words" -- "$current") )
}}
complete -o default -F _pluto pluto pluto-export"""


def zsh(commands: dict[str, str], options: dict[str, list[Option]]) -> str:
    """zsh runs bash's."""
    start = "autoload -Uz compinit bashcompinit\n(( $+functions[compdef] )) || compinit\nbashcompinit"
    return f"{start}\n{bash(commands, options)}"


def fish(commands: dict[str, str], options: dict[str, list[Option]]) -> str:
    lines = [
        f"complete -c pluto -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}"
        for name, text in commands.items()
    ]
    for name, found in options.items():
        for o in found:
            flags = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in o.names)
            what = f"-f -a {_quoted(' '.join(o.choices))}" if o.choices else ""
            if not flags and not what:
                continue  # files, as fish does by itself
            parts = [flags, "-r" if flags and o.value else "", what, f"-d {_quoted(o.help)}" if o.help else ""]
            start = f"complete -c pluto -n '__fish_seen_subcommand_from {name}'"
            lines.append(" ".join([start, *filter(None, parts)]))
    lines.append("complete -c pluto-export --wraps 'pluto export'")
    return "\n".join(lines)


def _words(names: Iterable[tuple[str, ...]]) -> str:
    return " ".join(name for group in names for name in group)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
