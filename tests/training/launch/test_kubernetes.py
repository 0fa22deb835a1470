"""The manifests for Kubernetes: by schema, and against the verbs they call."""

import pathlib

import kubernetes_validate
import pytest
import yaml

from training.launch.__main__ import WorkerConfig, is_temporary, parse

KUBERNETES = (
    pathlib.Path(__file__).parents[3] / "training" / "launch" / "kubernetes"
)
# What a TFJob's spec may hold, down to the pods: kubeflow/training-operator,
# manifests/base/crds/kubeflow.org_tfjobs.yaml.
SPEC = {"enableDynamicWorker", "runPolicy", "successPolicy", "tfReplicaSpecs"}
RUN_POLICY = {
    *("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy"),
    *("schedulingPolicy", "suspend", "ttlSecondsAfterFinished"),
}
REPLICA = {"replicas", "restartPolicy", "template"}


def load(*parts):
    return yaml.safe_load(KUBERNETES.joinpath(*parts).read_text())


def pod(name):
    spec = load(name, "job.yaml")["spec"]
    if name == "workers":
        spec = spec["tfReplicaSpecs"]["Worker"]
    return spec["template"]["spec"]


def container(name):
    (found,) = pod(name)["containers"]
    return found


def test_tfjob():
    job = load("workers", "job.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    spec = job["spec"]
    (worker,) = spec["tfReplicaSpecs"].values()
    assert spec.keys() <= SPEC
    assert spec["runPolicy"].keys() <= RUN_POLICY
    assert worker.keys() <= REPLICA
    # The operator sets TF_CONFIG for two replicas and more, in this container.
    assert worker["replicas"] > 1
    assert container("workers")["name"] == "tensorflow"
    template = {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": "worker"},
        "template": worker["template"],
    }
    kubernetes_validate.validate(template, "1.37", strict=True)


@pytest.mark.parametrize("path", ["storage/claim.yaml", "tpu/job.yaml"])
def test_kubernetes_schemas(path):
    kubernetes_validate.validate(load(path), "1.37", strict=True)


@pytest.mark.parametrize(
    "name, strategy", [("workers", "multi_worker"), ("tpu", "tpu")]
)
def test_commands_are_accepted(name, strategy):
    from training import pretrain

    words = container(name)["command"] + container(name)["args"]
    assert words[:3] == ["python", "-m", "training.launch"]
    launcher, command = parse(words[3:])
    assert isinstance(launcher, WorkerConfig)
    assert launcher.grace_period < pod(name)["terminationGracePeriodSeconds"]
    assert command[:3] == ["python", "-m", "training.pretrain"]
    config = pretrain.parse(command[3:])
    assert config.run.strategy == strategy
    (mount,) = (
        mount["mountPath"]
        for mount in container(name)["volumeMounts"]
        if mount["name"] == "training"
    )
    for folder in (config.run.data, config.run.workdir):
        assert folder.is_relative_to(mount)
    # A TPU needs fixed shapes.
    assert config.run.packed == (strategy != "tpu")


def test_what_no_restart_mends_ends_the_job():
    rules = load("tpu", "job.yaml")["spec"]["podFailurePolicy"]["rules"]
    (codes,) = (
        rule["onExitCodes"] for rule in rules if rule["action"] == "FailJob"
    )
    assert codes["containerName"] == container("tpu")["name"]
    assert codes["operator"] == "In"
    assert not any(map(is_temporary, codes["values"]))
    assert 1 in codes["values"]
