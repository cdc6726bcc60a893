"""`rosetta plan`: what a training step would do on a card that is not here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

CARD = "h100"


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("plan", parents=[common], help="compile a training step for a card that is not here, and say what it would do")
    entry.add_argument("framework", choices=("t5x",))
    entry.add_argument("--family", default="t5_1_1", help="of the model (default t5_1_1)")
    entry.add_argument("--size", default="large", help="default large")
    entry.add_argument("--card", default=CARD, help=f"a100, h100, h200, gh200 or b200 (default {CARD})")
    entry.add_argument("--gpus", type=int, default=8, help="of all nodes (default 8)")
    entry.add_argument("--gpus-per-node", type=int, default=8, help="default 8")
    entry.add_argument("--batch-per-gpu", type=int, default=32, help="sequences (default 32)")
    entry.add_argument("--tp", type=int, default=1, help="GPUs that share a model (default 1)")
    entry.add_argument("--inputs", type=int, default=512, help="tokens (default 512)")
    entry.add_argument("--targets", type=int, default=128, help="tokens (default 128)")
    entry.add_argument("--dropout", type=float, default=0.0, help="default 0: cuDNN's attention has none")
    entry.add_argument("--fsdp", action="store_true", help="shard the optimizer's state over the data axis")
    entry.add_argument("--microbatches", type=int, default=1)
    entry.add_argument("--hlo", metavar="FILE", help="also write the optimised HLO")
    entry.add_argument("--with", dest="switches", nargs="+", default=[], metavar="SWITCH=VALUE", help="of T5Config: fp8=xla fuse_qkv=true attention=cudnn remat=minimal ...")


def _plan(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from rosetta.plan import report, target  # noqa: PLC0415 (each command loads what it needs)
    from rosetta.t5x import ginread  # noqa: PLC0415

    target.prepare()
    settings = {"MODEL_DIR": "", "TRAIN_STEPS": 1, "DATA": "synthetic", "VOCAB": "ids:32128", "DROPOUT_RATE": args.dropout, "BATCH_SIZE": args.gpus * args.batch_per_gpu}
    settings |= {"trainer.Trainer.num_microbatches": args.microbatches}
    bindings = [f"{name} = {ginread.literal(value)}" for name, value in settings.items()]
    bindings += [f"network.T5Config.{name} = {_value(value)}" for name, _, value in (word.partition("=") for word in args.switches)]
    nodes = -(-args.gpus // args.gpus_per_node)
    compiled = target.t5x(
        [f"rosetta/t5x/gin/{args.family}/{args.size}.gin", "rosetta/t5x/gin/runs/pretrain.gin"], bindings, card=args.card, nodes=nodes,
        per_node=args.gpus // nodes, tensor_parallel=args.tp, batch=args.gpus * args.batch_per_gpu // args.tp,
        lengths={"inputs": args.inputs, "targets": args.targets}, fsdp=args.fsdp,
    )  # fmt: skip
    if args.hlo:
        with open(args.hlo, "w", encoding="utf-8") as out:
            out.write(compiled.text)
    found = report.report(compiled)
    return found, report.table(found)


def _value(text: str) -> str:
    """A switch's value as gin wants it."""
    if text.lower() in ("true", "false"):
        return text.capitalize()
    return text if text.replace(".", "", 1).isdigit() else f"'{text}'"


RUN = {"plan": _plan}
