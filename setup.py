from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent


def requirements() -> list[str]:
    lines = (line.split("#")[0].strip() for line in (here / "requirements.txt").read_text().splitlines())
    return [line for line in lines if line]


setup(
    name="speedwell",
    version="0.1.0",
    description="A network-aware distributed filesystem co-designed with an SDN controller",
    long_description=(here / "README.md").read_text(),
    long_description_content_type="text/markdown",
    python_requires=">=3.11",
    packages=find_packages(include=[f"{room}{tail}" for room in
                                    ("cluster", "coflow", "controller", "fs", "fuse_mount", "host_agent", "sim",
                                     "topo")
                                    for tail in ("", ".*")]),
    package_data={"fs.proto": ["*.proto"], "cluster.hdfs": ["pom.xml", "log4j.properties", "java/*.java"]},
    install_requires=requirements(),
    extras_require={"dask": ["distributed>=2024.8"]},       # sweeps of experiments past one machine
    entry_points={
        "console_scripts": [
            "speedwell=cluster.cli:main",
            "speedwell-controller=controller.main:main",
            "speedwell-nameserver=fs.nameserver.main:main",
            "speedwell-dataserver=fs.dataserver.main:main",
            "speedwell-metadata-store=fs.metadata_store.main:main",
            "speedwell-mount=fuse_mount.main:main",
            "speedwell-host-agent=host_agent.main:main",
        ],
        "fsspec.specs": ["speedwell=fs.fsspec:SpeedwellFileSystem"],
    },
)
