"""What is launched: valid by SkyPilot's own schema, within the price, and without the token."""

import json
from pathlib import Path

import jsonschema_rs
import pytest

from spotlightd.errors import InputError, UsageError
from spotlightd.fleets import kubernetes, sky
from spotlightd.fleets.fleet import Fleet, check_name, read_gpu
from spotlightd.fleets.offers import affordable, read_catalogue

SCHEMA = json.loads((Path(__file__).parent / "skypilot_schema.json").read_text())
FLEET = Fleet("spot", "H100", 8, 3, 2.5)
HEADER = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,"
AWS = f"""{HEADER}Region,AvailabilityZone
p5.48xlarge,H100,8.0,192,2048,,55.04,16.13,us-west-2,us-west-2d
p5.48xlarge,H100,8.0,192,2048,,55.04,24.80,us-east-1,us-east-1a
p5.48xlarge,H100,8.0,192,2048,,55.04,,us-east-1,us-east-1b
p5.4xlarge,H100,1.0,16,256,,6.88,2.10,us-east-1,us-east-1a
m5.large,,,2,8,,0.1,0.04,us-east-1,us-east-1a
"""
GCP = f"""{HEADER}Region,AvailabilityZone
a3-highgpu-8g,H100,8.0,208,1872,,88.49,18.00,us-central1,us-central1-a
a3-highgpu-8g,H100,8.0,208,1872,,88.49,17.00,us-central1,us-central1-a
"""


@pytest.fixture
def catalogue(tmp_path):
    for version, prices in (("v8", (AWS, GCP)), ("v7", ("stale\n", "stale\n"))):
        for cloud, text in zip(("aws", "gcp"), prices, strict=True):
            (tmp_path / version / cloud).mkdir(parents=True)
            (tmp_path / version / cloud / "vms.csv").write_text(text)
    return tmp_path


def valid(task):
    jsonschema_rs.validator_for(SCHEMA["task"]).validate(task)
    jsonschema_rs.validator_for(SCHEMA["resources"]).validate(task["resources"])


def test_prices_are_the_zones_and_a_gpus(catalogue):
    offers = read_catalogue(catalogue, "h100", 8)
    assert [(offer.infra, offer.price) for offer in offers] == [
        ("aws/us-west-2/us-west-2d", 16.13 / 8),
        ("gcp/us-central1/us-central1-a", 17.0 / 8),
        ("aws/us-east-1/us-east-1a", 24.8 / 8),
    ]
    assert [offer.place for offer in affordable(offers, 2.05, "H100")] == ["us-west-2d"]


def test_a_limit_below_every_price_names_the_cheapest(catalogue):
    with pytest.raises(InputError, match=r"cheapest is 2.02 in aws/us-west-2/us-west-2d"):
        affordable(read_catalogue(catalogue, "H100", 8), 1.0, "H100")
    with pytest.raises(InputError, match="sky gpus list"):
        affordable(read_catalogue(catalogue, "H900", 8), 1.0, "H900")
    with pytest.raises(InputError, match="sky check"):
        read_catalogue(catalogue / "nowhere", "H100", 8)


def test_the_task_is_valid_by_skypilots_schema(catalogue):
    offers = affordable(read_catalogue(catalogue, "H100", 8), 2.5, "H100")
    for among in (offers, []):
        task = sky.task(FLEET, "spot-0", among)
        valid(task)
    task = sky.task(FLEET, "spot-0", offers)
    assert [row["infra"] for row in task["resources"]["any_of"]] == [o.infra for o in offers]
    assert task["resources"]["use_spot"] and task["resources"]["accelerators"] == "H100:8"
    assert task["secrets"] == {"SPOTLIGHT_TOKEN": None} and "--workers 8" in task["run"]


@pytest.mark.parametrize(
    "change", [{"resorces": {}}, {"num_nodes": "two"}, {"resources": {"use_spto": True}}]
)
def test_that_schema_refuses_what_is_wrong(change):
    with pytest.raises(jsonschema_rs.ValidationError):
        valid(sky.task(FLEET, "spot-0", []) | change)


def test_the_manifest_speaks_the_exit_codes():
    fleet = Fleet("spot", "NVIDIA-H100-80GB-HBM3", 2, 5, image="registry.example/agent:1")
    secret, job = kubernetes.manifest(fleet, "spl1.the.token")["items"]
    assert secret["stringData"] == {"token": "spl1.the.token"}
    assert "the.token" not in json.dumps(job), "pods read it from the secret's file"
    rules = job["spec"]["podFailurePolicy"]["rules"]
    by_action = {
        rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule
    }
    assert by_action == {"Ignore": [3], "FailJob": [64, 76, 77, 78]}
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "a failure policy needs it"
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 2}
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert job["spec"]["parallelism"] == job["spec"]["completions"] == 5


@pytest.mark.parametrize(
    ("wrong", "read"), [("H100:0", read_gpu), (":1", read_gpu), ("Spot", check_name)]
)
def test_wrong_words(wrong, read):
    with pytest.raises(UsageError, match="write a"):
        read(wrong)


def test_words():
    assert read_gpu("H100") == ("H100", 1) and read_gpu("A100-80GB:8") == ("A100-80GB", 8)
