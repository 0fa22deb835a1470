"""The deployment files: by schema, by message, and against each other."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

import kubernetes_validate
import pytest
import requests
import yaml
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)

from export import client, local_server, messages
from export.files import server_config

DEPLOY = pathlib.Path(__file__).parents[2] / "export" / "deploy"
CONFIG, KUBERNETES = DEPLOY / "config", DEPLOY / "kubernetes"
GRPC_PORT, REST_PORT = 8500, 8501  # of the image: tools/docker/Dockerfile
# TensorFlow Serving's model_servers/main.cc.
FLAGS = set(
    """
    port grpc_socket_path rest_api_port rest_api_num_threads
    rest_api_timeout_in_ms rest_api_enable_cors_support enable_batching
    allow_version_labels_for_unavailable_models batching_parameters_file
    enable_per_model_batching_parameters model_config_file
    model_config_file_poll_wait_seconds model_name model_base_path
    num_load_threads num_unload_threads max_num_load_retries
    load_retry_interval_micros file_system_poll_wait_seconds
    flush_filesystem_caches tensorflow_session_parallelism
    tensorflow_session_config_file tensorflow_intra_op_parallelism
    tensorflow_inter_op_parallelism use_alts_credentials ssl_config_file
    platform_config_file per_process_gpu_memory_fraction saved_model_tags
    grpc_channel_arguments grpc_max_threads enable_model_warmup
    num_request_iterations_for_warmup version monitoring_config_file
    remove_unused_fields_from_bundle_metagraph prefer_tflite_model
    num_tflite_pools num_tflite_interpreters_per_pool
    enable_signature_method_name_check xla_cpu_compilation_enabled
    xla_gpu_compilation_enabled enable_profiler thread_pool_factory_config_file
    mixed_precision skip_initialize_tpu enable_grpc_healthcheck_service
    enable_serialization_as_tensor_content
    """.split()
)
# What the wheel of tensorflow-serving-api leaves out, after its
# servables/tensorflow/session_bundle_config.proto and
# config/monitoring_config.proto.
SCHEMA = """
name: "serving.proto"
package: "serving"
syntax: "proto3"
dependency: "google/protobuf/wrappers.proto"
message_type {
  name: "BatchingParameters"
  field {
    name: "max_batch_size" number: 1 label: LABEL_OPTIONAL
    type_name: ".google.protobuf.Int64Value"
  }
  field {
    name: "batch_timeout_micros" number: 2 label: LABEL_OPTIONAL
    type_name: ".google.protobuf.Int64Value"
  }
  field {
    name: "max_enqueued_batches" number: 3 label: LABEL_OPTIONAL
    type_name: ".google.protobuf.Int64Value"
  }
  field {
    name: "num_batch_threads" number: 4 label: LABEL_OPTIONAL
    type_name: ".google.protobuf.Int64Value"
  }
  field {
    name: "allowed_batch_sizes" number: 6 label: LABEL_REPEATED
    type: TYPE_INT64
  }
  field {
    name: "pad_variable_length_inputs" number: 7 label: LABEL_OPTIONAL
    type: TYPE_BOOL
  }
}
message_type {
  name: "MonitoringConfig"
  field {
    name: "prometheus_config" number: 1 label: LABEL_OPTIONAL
    type_name: ".serving.PrometheusConfig"
  }
}
message_type {
  name: "PrometheusConfig"
  field { name: "enable" number: 1 label: LABEL_OPTIONAL type: TYPE_BOOL }
  field { name: "path" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
}
"""


def read(*parts):
    return DEPLOY.joinpath(*parts).read_text(encoding="utf-8")


def load(*parts):
    return yaml.safe_load(read(*parts))


def manifests():
    base = KUBERNETES / "base"
    for name in load(base, "kustomization.yaml")["resources"]:
        yield from yaml.safe_load_all((base / name).read_text())


def manifest(kind):
    (found,) = (m for m in manifests() if m["kind"] == kind)
    return found


def container():
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    (found,) = pod["containers"]
    return found


def commands():
    """Yields the server's flags, `{flag: value}`, of Compose, of Kubernetes."""
    for words, name in (
        (
            load("compose.yaml")["services"]["server"]["command"],
            "${MODEL_NAME}",
        ),
        (container()["args"], "$(MODEL_NAME)"),
    ):
        flags = {}
        for word in words:
            flag, _, value = word.removeprefix("--").partition("=")
            flags[flag] = value.replace(name, "NAME")
        yield flags


def parse(name, message):
    """Parses a text-format file as a message of `SCHEMA`."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto()))
    descriptor = pool.FindMessageTypeByName(f"serving.{message}")
    return text_format.Parse(
        read("config", name), message_factory.GetMessageClass(descriptor)()
    )


@pytest.fixture(scope="module")
def labeled(base_path, tmp_path_factory):
    """The stand-in with `config/models.config`, its paths moved."""
    folder = tmp_path_factory.mktemp("models")
    for version in ("1", "2"):
        shutil.copytree(base_path / "3", folder / "encoder" / version)
    config = folder / server_config.MODELS_FILE
    text = read("config", config.name).replace("/models/", f"{folder}/")
    config.write_text(text)
    with local_server.started(
        "encoder",
        *("--model_config_file", str(config)),
        "--allow_version_labels_for_unavailable_models",
    ) as server:
        yield server


def test_batching_parameters():
    config = parse(server_config.BATCHING_FILE, "BatchingParameters")
    sizes = list(config.allowed_batch_sizes)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == config.max_batch_size.value
    assert not config.pad_variable_length_inputs
    for flags in commands():
        for flag in ("rest_api_num_threads", "grpc_max_threads"):
            assert int(flags[flag]) == 2 * config.max_batch_size.value


def test_monitoring():
    config = parse(server_config.MONITORING_FILE, "MonitoringConfig")
    (job,) = load("config", "prometheus.yml")["scrape_configs"]
    assert config.prometheus_config.enable
    assert config.prometheus_config.path == job["metrics_path"]
    assert job["static_configs"] == [{"targets": [f"server:{REST_PORT}"]}]


def test_labels_name_versions_that_are_served():
    config = text_format.Parse(
        read("config", server_config.MODELS_FILE),
        messages.model_server_config_pb2.ModelServerConfig(),
    )
    (model,) = config.model_config_list.config
    assert model.version_labels.keys() == {"stable", "canary"}
    served = model.model_version_policy.specific.versions
    assert set(model.version_labels.values()) == set(served)


@pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
def test_labels_are_served(labeled, protocol):
    for label, version in (("stable", 1), ("canary", 2)):
        url = getattr(labeled, protocol)
        with client.connect(url, "encoder", label=label) as connection:
            assert connection.version() == version
            connection.embed(["some text"])


def test_alerts_use_metrics_that_the_page_names():
    named = set(re.findall(r"^\| `(:\S+)` ", read("README.md"), re.MULTILINE))
    (group,) = load("config", "alerts.yml")["groups"]
    for rule in group["rules"]:
        used = set(re.findall(r"(:[a-z_:]+)[{[]", rule["expr"]))
        assert {name.removesuffix("_bucket") for name in used} <= named
    assert load("config", "prometheus.yml")["rule_files"] == ["alerts.yml"]


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_compose_schema(name):
    subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema"),
            *("--builtin-schema", "vendor.compose-spec", DEPLOY / name),
        ],
        check=True,
    )


def test_images_are_of_one_version():
    images = [
        load("compose.yaml")["services"]["server"]["image"],
        container()["image"],
    ]
    assert images[0] == images[1]
    tag = images[0].removeprefix("tensorflow/serving:")
    assert re.fullmatch(r"2\.20\.\d+", tag)
    gpu = load("compose.gpu.yaml")["services"]["server"]["image"]
    assert gpu == f"tensorflow/serving:{tag}-gpu"
    overlay = load("kubernetes", "overlays", "gpu", "kustomization.yaml")
    (image,) = overlay["images"]
    assert f"{image['name']}:{image['newTag']}" == gpu


def test_flags_exist():
    compose, kubernetes = commands()
    assert compose.items() <= kubernetes.items()
    assert kubernetes.keys() <= FLAGS
    for flags in (compose, kubernetes):
        assert flags["enable_batching"] == ""
        files = {v for flag, v in flags.items() if flag.endswith("_file")}
        assert files == {
            f"/models/NAME/{name}"
            for name in (
                server_config.BATCHING_FILE,
                server_config.MODELS_FILE,
                server_config.MONITORING_FILE,
            )
        }
    page = {
        flag
        for text in re.findall(r"`(--[^`]*)`", read("README.md"))
        for flag in re.findall(r"--([a-z]\w+)", text)
    }
    assert page <= FLAGS


def test_ports():
    server = load("compose.yaml")["services"]["server"]
    assert server["ports"] == [
        f"127.0.0.1:{port}:{port}" for port in (GRPC_PORT, REST_PORT)
    ]
    assert {p["name"]: p["containerPort"] for p in container()["ports"]} == {
        "grpc": GRPC_PORT,
        "rest": REST_PORT,
    }
    services = [m["spec"] for m in manifests() if m["kind"] == "Service"]
    exposed = {
        port["targetPort"]: (port["port"], service.get("clusterIP"))
        for service in services
        for port in service["ports"]
    }
    assert exposed == {"rest": (REST_PORT, None), "grpc": (GRPC_PORT, "None")}


def test_models_are_mounted_read_only():
    (volume,) = load("compose.yaml")["services"]["server"]["volumes"]
    assert volume.endswith(":/models:ro")
    mounts = {m["mountPath"]: m for m in container()["volumeMounts"]}
    assert mounts["/models"]["readOnly"]


def test_kubernetes_schemas():
    kinds = []
    for document in manifests():
        kubernetes_validate.validate(document, "1.37", strict=True)
        kinds.append(document["kind"])
    assert {"Deployment", "Service", "HorizontalPodAutoscaler"} <= set(kinds)


def test_every_selector_finds_the_pods():
    pods = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    for document in manifests():
        selector = document["spec"].get("selector")
        if selector:
            assert selector.get("matchLabels", selector) == pods
    scaled = manifest("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert scaled["name"] == manifest("Deployment")["metadata"]["name"]


def test_requests_end_before_a_pod_does():
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    word, seconds = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"
    rest_timeout = 30  # rest_api_timeout_in_ms by default, in seconds
    assert rest_timeout < int(seconds) < pod["terminationGracePeriodSeconds"]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")
@pytest.mark.parametrize("layer", ["base", "overlays/gpu"])
def test_rendered(layer):
    rendered = subprocess.run(
        ["kubectl", "kustomize", KUBERNETES / layer],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    documents = {}
    for document in yaml.safe_load_all(rendered):
        kubernetes_validate.validate(document, "1.37", strict=True)
        documents[document["kind"]] = document
    (server,) = documents["Deployment"]["spec"]["template"]["spec"][
        "containers"
    ]
    gpu = layer == "overlays/gpu"
    assert server["image"].endswith("-gpu") == gpu
    assert ("nvidia.com/gpu" in server["resources"]["limits"]) == gpu
    assert ("HorizontalPodAutoscaler" in documents) != gpu
    name = documents["ConfigMap"]["data"]["MODEL_NAME"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = server[probe]["httpGet"]["path"]
        assert path.split("/")[1:4] == ["v1", "models", name]


def test_kubernetes_probes(server):
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = container()[probe]["httpGet"]["path"]
        for name, status in (("tiny", 200), ("absent", 404)):
            url = server.rest_url + path.replace("encoder", name)
            assert requests.get(url, timeout=30).status_code == status


@pytest.mark.parametrize(("name", "healthy"), [("tiny", True), ("no", False)])
def test_compose_health_check(server, name, healthy):
    check = load("compose.yaml")["services"]["server"]["healthcheck"]["test"]
    kind, *command = check
    assert kind == "CMD"
    port = urllib.parse.urlsplit(server.rest_url).port
    command[-1] = (
        command[-1].replace("$$", "$").replace(str(REST_PORT), str(port))
    )
    ended = subprocess.run(command, env={"MODEL_NAME": name}, timeout=30)
    assert (ended.returncode == 0) == healthy


def test_the_page_shows_a_request_that_is_answered(server):
    (body,) = re.findall(r"curl -d '(.*)'", read("README.md"))
    url = f"{server.rest_url}/v1/models/tiny:predict"
    answer = requests.post(url, json=json.loads(body), timeout=30)
    assert len(answer.json()["predictions"]) == 1
