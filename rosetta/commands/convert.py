"""The command `rosetta convert`: convert the weights of a model to another layout.

A layout is the set of files in which a model is published or trained. Each kind of model has a
module: `convert_llama`, `convert_gpt`, `convert_t5` and `convert_bert`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.commands import convert_bert, convert_gpt, convert_llama, convert_t5
from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    import argparse

_MODELS: dict[str, Any] = {
    "llama": convert_llama,
    "gpt": convert_gpt,
    "t5": convert_t5,
    "bert": convert_bert,
}
# The options that do not decide what is written into OUT.
_NOT_OF_THE_RESULT = ("push", "public", "json", "log_level")


def add_parsers(commands: Any, common: Any) -> None:
    """Add the command's parser."""
    convert = commands.add_parser("convert", parents=[common])
    models = convert.add_subparsers(dest="model", metavar="MODEL")
    for name, module in _MODELS.items():
        module.add_parser(models)
        _add_upload_options(models.choices[name])


def _add_upload_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the upload to the parser of a model."""
    parser.add_argument(
        "--push",
        metavar="hf:OWNER/NAME",
        help=(
            "for hf: upload OUT to the Hugging Face Hub, as a private model unless --public is "
            "given; HF_TOKEN has the token"
        ),
    )
    parser.add_argument(
        "--public", action="store_true", help="with --push: let everybody see the model"
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta convert`; return its result and the text to print."""
    if args.push is not None:
        return _convert_and_upload(args)
    if args.public:
        raise UserError("works only with --push", "--public", "add --push", kind=CONFLICT)
    result: tuple[dict[str, Any], str] = _MODELS[args.model].run(args)
    return result


def _convert_and_upload(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Convert a model unless that is done already, and upload it.

    Raises:
      UserError: The model cannot be converted or uploaded. If it was converted, the folder stays.
    """
    from rosetta.convert.pending_upload import PendingUpload
    from rosetta.data import model_upload

    where = f"--push {args.push}"
    args.to = args.to or "hf"
    if args.to != "hf":
        raise UserError("works only with --to hf", where, "add --to hf", kind=CONFLICT)
    target = model_upload.Target(args.push, where, public=args.public)
    target.check_visibility()
    options = {
        name: value
        for name, value in vars(args).items()
        if name not in _NOT_OF_THE_RESULT and not callable(value)
    }
    pending = PendingUpload(args.source, args.out, options)
    converted = pending.read()
    if converted is None:
        converted = _MODELS[args.model].run(args)
        pending.write(*converted)
    result, text = converted
    upload = target.upload(args.out)
    pending.remove()
    visibility = "private" if upload.private else "public"
    lines = [text]
    if upload.removed:
        lines.append(f"removed from the Hub, because OUT lacks them: {', '.join(upload.removed)}")
    lines.append(f"uploaded and compared: {target.name}, {visibility}, commit {upload.commit}")
    pushed = {"name": str(target.name), "commit": upload.commit, "private": upload.private}
    return {**result, "pushed": {**pushed, "removed": list(upload.removed)}}, "\n".join(lines)


RUN = {"convert": run}
