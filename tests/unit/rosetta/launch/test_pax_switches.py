"""XLA flags, attention and FP8 of the scripts; see tests/support/pax_scripts.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors
from tests.support.pax_scripts import A100, H100, OURS, TEXT, Place, place_

__all__ = ["place_"]  # a fixture


class TestFlags:
    def test_as_the_seed_has_them(self, place: Place) -> None:
        base = """--xla_gpu_enable_latency_hiding_scheduler=true
                --xla_gpu_enable_triton_gemm=false
                --xla_gpu_all_reduce_combine_threshold_bytes=33554432
                --xla_gpu_graph_level=0"""
        ran = place.run(
            "run_pile_multinode.sh",
            **TEXT,
            BASE_XLA_FLAGS=base,
            XLA_FLAGS="--set_xla_gpu_enable_cudnn_fmha=False",
        )
        assert ran.rc == 0, ran.err
        assert ran.env["XLA_FLAGS"] == OURS.format(33554432) + " --xla_gpu_enable_cudnn_fmha=false"
        assert "BASE_XLA_FLAGS" not in ran.env
        assert ran.said[1:] == [
            (
                "rosetta: --xla_gpu_graph_level=0 of BASE_XLA_FLAGS: "
                "replaced by --xla_gpu_enable_command_buffer="
            ),
            (
                "rosetta: --set_xla_gpu_enable_cudnn_fmha=False of XLA_FLAGS: "
                "replaced by --xla_gpu_enable_cudnn_fmha=false"
            ),
        ]

    def test_the_users_come_last_and_win(self, place: Place) -> None:
        ran = place.run(
            "run_base_config_multinode.sh",
            "Synthetic5B",
            XLA_FLAGS="--xla_gpu_enable_triton_gemm=true",
        )
        assert ran.env["XLA_FLAGS"].endswith(" --xla_gpu_enable_triton_gemm=true")


class TestSwitches:
    def test_attention_is_cudnns_where_every_card_has_it(self, place: Place) -> None:
        for card in (H100, A100):
            assert (
                place.run(
                    "run_base_config_multinode.sh", "Synthetic5B", "", "1", **place.cards(card)
                ).hyper["ATTENTION"]
                == '"cudnn"'
            )
        assert (
            "ATTENTION"
            not in place.run(
                "run_base_config_multinode.sh",
                "Synthetic5B",
                "",
                "1",
                **place.cards("Tesla V100-SXM2-32GB, 7.0"),
            ).hyper
        )
        assert (
            "ATTENTION"
            not in place.run(
                "run_base_config_multinode.sh", "Synthetic5B", "float32", "1", **place.cards(H100)
            ).hyper
        )

    def test_the_small_model_has_none(self, place: Place) -> None:
        ran = place.run("run_pile_singlenode.sh", "", "byte", "", "1", **TEXT, **place.cards(H100))
        assert ran.hyper["ATTENTION"] == '"xla"'
        assert any("the 126M model diverged" in line for line in ran.said)

    @pytest.mark.parametrize(
        "settings",
        [
            {"XLA_FLAGS": "--set_xla_gpu_enable_cudnn_fmha=False"},
            {"XLA_FLAGS": "--xla_gpu_enable_cudnn_fmha=false"},
            {"ATTENTION": "xla"},
        ],
    )
    def test_flash_attention_is_switched_off_as_documented(
        self, place: Place, settings: dict[str, str]
    ) -> None:
        assert (
            place.run(
                "run_base_config_multinode.sh",
                "Synthetic5B",
                "",
                "1",
                **settings,
                **place.cards(H100),
            ).hyper["ATTENTION"]
            == '"xla"'
        )

    def test_fp8(self, place: Place) -> None:
        ran = place.run(
            "run_base_config_multinode.sh",
            "Synthetic5B",
            "",
            "1",
            ENABLE_FP8="1",
            **place.cards(H100),
        )
        assert ran.rc == 0, ran.err
        assert ran.hyper["USE_FP8"] == "True"
        assert any(
            "FP8 is XLA's own (USE_FP8), as Transformer Engine is off" in line for line in ran.said
        )
        ran = place.run(
            "run_base_config_multinode.sh", "Synthetic5B", ROSETTA_FDL="--fdl.USE_FP8=True"
        )
        assert (ran.hyper["USE_FP8"], ran.env["ENABLE_FP8"]) == ("True", "0")
        assert any("the CPU has no FP8" in line for line in ran.said)

    @pytest.mark.parametrize("word", ["True", "true", "on", "1"])
    def test_a_hyper_parameter_takes_the_words_of_a_variable(self, place: Place, word: str) -> None:
        ran = place.run(
            "run_base_config_multinode.sh", "Synthetic5B", ROSETTA_FDL=f"--fdl.USE_FP8={word}"
        )
        assert any("the CPU has no FP8" in line for line in ran.said)
        ran = place.run(
            "run_base_config_multinode.sh",
            "Synthetic5B",
            ENABLE_FP8="1",
            ROSETTA_FDL="--fdl.ENABLE_FP8=off",
        )
        assert ran.env["ENABLE_FP8"] == "0"
        assert "USE_FP8" not in ran.hyper

    @pytest.mark.parametrize(
        ("settings", "card", "kind", "facts"),
        [
            (
                {"ENABLE_FP8": "1"},
                A100,
                errors.UNSUPPORTED,
                {"where": "ENABLE_FP8=1", "value": "NVIDIA A100-SXM4-80GB"},
            ),
            (
                {"ROSETTA_FDL": "--fdl.USE_FP8=True"},
                A100,
                errors.UNSUPPORTED,
                {"where": "--fdl.USE_FP8=True", "value": "NVIDIA A100-SXM4-80GB"},
            ),
            (
                {"ENABLE_FP8": "1", "PREC": "float32"},
                H100,
                errors.CONFLICT,
                {"where": "PREC=float32", "value": "float32", "names": ("FP8", "bfloat16")},
            ),
            ({"ENABLE_TE": "1"}, H100, errors.MISSING, {"where": "Transformer Engine"}),
            (
                {"ENABLE_TE": "1", "ROSETTA_FDL": "--fdl.USE_FP8=True"},
                H100,
                errors.CONFLICT,
                {"where": "--fdl.USE_FP8=True", "names": "XLA"},
            ),
            ({"ENABLE_TE": "2"}, H100, errors.INVALID, {"where": "ENABLE_TE", "value": "2"}),
            (
                {"ATTENTION": "flash"},
                H100,
                errors.INVALID,
                {"where": "ATTENTION", "value": "flash"},
            ),
        ],
    )
    def test_what_cannot_be(
        self, place: Place, settings: dict[str, str], card: str, kind: str, facts: dict[str, Any]
    ) -> None:
        ran = place.run(
            "run_base_config_multinode.sh", "Synthetic5B", "", "1", **settings, **place.cards(card)
        )
        assert (ran.rc, ran.argv) == (2, [])
        errors.check_error(ran.error, kind, **facts)
        assert len(ran.err.splitlines()) == 1
