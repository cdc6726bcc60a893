"""The commands of build.py: everything that lists commands reads this table."""

from __future__ import annotations

from rosetta.core.command_line import Command, Program

BUILD, CHECK, MAINTAIN, PUBLISH = "build", "check", "maintain", "publish"

PROGRAM = Program(
    name="build.py",
    typed="python3 build.py",
    description="Bake T5X and Paxml for NVIDIA GPUs, from the pins in manifest.yaml.",
    groups={
        BUILD: "build",
        CHECK: "check",
        MAINTAIN: "maintain pins, patches and locks",
        PUBLISH: "publish",
    },
    commands=(
        Command(
            "build",
            BUILD,
            "bake a distribution into an environment or an image",
            "builder.commands.build",
            (
                "--distribution t5x",
                "--distribution pax --accelerator cuda13 --output image:pax:mine",
            ),
            "You may leave the name of this command out.",
        ),
        Command(
            "quickstart",
            BUILD,
            "bake a distribution for the CPU and train a tiny model in it",
            "builder.commands.quickstart",
            ("--distribution t5x",),
            "At the end, the command shows the loss.",
        ),
        Command(
            "context",
            BUILD,
            "prepare the folders that Dockerfile.t5x and Dockerfile.pax copy",
            "builder.commands.context",
            ("t5x build/context --accelerator cuda13",),
        ),
        Command(
            "wheel",
            BUILD,
            "compile Transformer Engine for JAX, or make the wheel for login nodes",
            "builder.commands.wheel",
            ("transformer-engine --accelerator cuda13", "launcher --output dist"),
        ),
        Command(
            "verify",
            CHECK,
            "train a tiny model in an environment or an image",
            "builder.commands.verify",
            ("env:build/t5x-cpu", "image:t5x:cuda13 --gpu"),
            "The command imports every module, trains, writes a checkpoint, restores it and trains "
            "further.",
        ),
        Command(
            "test",
            CHECK,
            "run the checks and tests of this repository",
            "builder.commands.test",
            ("--fast",),
        ),
        Command(
            "reproduce",
            CHECK,
            "build an image again from its own lock, and compare both",
            "builder.commands.reproduce",
            ("oci:build/t5x",),
            "The command takes no layer from the cache, and names the first difference.",
        ),
        Command(
            "bisect",
            CHECK,
            "find the commit, patch or package that broke something",
            "builder.commands.bisect",
            (
                "--good HEAD~20 --bad HEAD --distribution t5x -- python -c 'import t5x.models'",
                "--status",
            ),
            "COMMAND tells a good build from a bad one by its exit status.",
        ),
        Command(
            "lock",
            MAINTAIN,
            "resolve the packages of every line into hashed locks",
            "builder.commands.lock",
            ("--check", "--upgrade jax"),
        ),
        Command(
            "patches",
            MAINTAIN,
            "check, list, refresh, import or count the patches",
            "builder.commands.patches",
            (
                "check t5x",
                "status",
                "refresh --dry-run",
                "stats",
                "import HEAD --source t5x --repo clones/t5x --name my-patch --why 'a reason'",
            ),
        ),
        Command(
            "bump",
            MAINTAIN,
            "move pins along their branches, and name what breaks a patch",
            "builder.commands.bump",
            ("--forecast", "t5x"),
        ),
        Command(
            "cache",
            MAINTAIN,
            "show, check or shrink the cache of the builder",
            "builder.commands.cache",
            ("du", "check", "prune --days 14 --dry-run"),
        ),
        Command(
            "docs",
            MAINTAIN,
            "write the generated pages and Slurm files, and build the site",
            "builder.commands.docs",
            ("--check", "--site build/site"),
        ),
        Command(
            "publish",
            PUBLISH,
            "publish a signed image in a registry",
            "builder.commands.publish",
            ("t5x --accelerator cuda13 --to HOST/rosetta/t5x-cuda13 --key key.pem --dry-run",),
            "The tags move after everything was read back.",
        ),
        Command(
            "verify-published",
            PUBLISH,
            "check a published image with nothing but the public key",
            "builder.commands.verify_published",
            ("HOST/rosetta/t5x-cuda13:latest --key key.pub",),
            "The command checks every platform, every blob, the attachments and the signatures.",
        ),
        Command(
            "promote",
            PUBLISH,
            "move latest-verified to an image that passed a suite of tests",
            "builder.commands.promote",
            (
                (
                    "HOST/rosetta/t5x-cuda13@sha256:DIGEST --suite selftest --result result.json "
                    "--key key.pem"
                ),
            ),
            "The command attaches a signed statement about the suite to the image.",
        ),
        Command(
            "changelog",
            PUBLISH,
            "show what changed between two published images",
            "builder.commands.changelog",
            ("HOST/rosetta/t5x-cuda13:stable HOST/rosetta/t5x-cuda13:latest --key key.pub",),
        ),
        Command(
            "release-notes",
            PUBLISH,
            "print the notes of a release from CHANGELOG.md",
            "builder.commands.release_notes",
            ("--write build/notes.md",),
            "The tag must be that of the version of this checkout.",
        ),
        Command(
            "nightly",
            PUBLISH,
            "bump, build, train, publish and report in one night",
            "builder.commands.nightly",
            ("--distribution pax-1.4 --mirror clones",),
            "If the command was stopped, start it again: it continues.",
        ),
        Command(
            "status",
            PUBLISH,
            "make the status page and its badges from the reports of the nights",
            "builder.commands.status",
            ("--reports build/nightly/reports",),
        ),
    ),
    shown=("quickstart", "build", "verify", "test"),
    default="build",
)
