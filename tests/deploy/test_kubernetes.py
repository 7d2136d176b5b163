"""deploy/kubernetes: valid by the schemas of Kubernetes, whole, and with settings under which a server may start."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from horarium.server.checks import check_settings
from tests.deploy.test_deploy import STOP_SECONDS, image_environment, settings_of

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
RELEASES = ("1.29.0", "1.35.0")


def manifests() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in kustomization()["resources"]:
        found += YAML(typ="safe").load_all((FOLDER / name).read_text())
    return found


def kustomization() -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load((FOLDER / "kustomization.yaml").read_text())
    return found


def pod(name: str) -> dict[str, Any]:
    (found,) = (each for each in manifests() if each["kind"] == "Deployment" and each["metadata"]["name"] == name)
    template: dict[str, Any] = found["spec"]["template"]
    return template


@pytest.mark.parametrize("release", RELEASES)
def test_the_manifests_are_valid(release: str) -> None:
    validate = importlib.import_module("kubernetes_validate").validate
    for manifest in manifests():
        validate(manifest, release, strict=True)


def test_every_manifest_is_applied() -> None:
    assert sorted(kustomization()["resources"]) == sorted(
        path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml"
    )


def test_selectors_find_their_pods() -> None:
    labels = [pod(name)["metadata"]["labels"] for name in ("horarium", "horarium-worker")]
    for manifest in manifests():
        selector = manifest["spec"]["selector"]
        assert selector.get("matchLabels", selector) in labels, manifest["metadata"]


def test_a_server_may_start_with_these_settings(tmp_path: Path) -> None:
    (container,) = pod("horarium")["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    store = tmp_path / "horarium_store"
    store.write_text("postgresql://horarium@postgres/horarium")
    keys = tmp_path / "api-keys"
    files = {"HORARIUM_STORE_FILE": str(store), "HORARIUM_API_KEYS_FILE": str(keys)}
    settings = settings_of({**image_environment(), **given, **files}, tmp_path)
    check_settings(settings)
    assert settings.allowed_hosts == ("horarium",)


@pytest.mark.parametrize("name", ["horarium", "horarium-worker"])
def test_a_pod_has_the_time_that_a_stop_takes(name: str) -> None:
    assert pod(name)["spec"]["terminationGracePeriodSeconds"] > STOP_SECONDS
