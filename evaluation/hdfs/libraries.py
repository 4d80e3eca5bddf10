"""HDFS's libraries: fetched once with Maven, kept in a cache with our Java classes and an archive of all classes.

    CACHE/lib/*.jar        Hadoop and what it needs, the versions of `pom.xml`
    CACHE/speedwell.jar    our classes (`java/`), and the empty web applications that Hadoop wants to find
    CACHE/classes.jsa      the classes as the Java machine holds them in memory (class data sharing, JEP 350)

The cache's name holds a hash of what it is made from; a cache appears whole or not at all.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from speedwell.cluster.errors import ClusterError
from speedwell.cluster.state_files import exclusive
from speedwell.evaluation.hdfs import configuration

Progress = Callable[[str], None]

HERE = Path(__file__).parent
HADOOP_VERSION = "3.4.1"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
PROGRAMS = ("java", "javac", "mvn")
WEB_APPLICATIONS = ("hdfs", "datanode", "secondary")
TIMEOUT_SECONDS = 300.0
# Hadoop reaches into these packages, which Java closes since version 16.
_OPEN_PACKAGES = ("java.base/java.lang", "java.base/java.util.concurrent", "java.base/sun.nio.ch")


class JavaMissing(ClusterError):
    """Java or Maven is not installed; the message says what to install."""


class LibrariesUnavailable(ClusterError):
    """The libraries could not be fetched or built; the message ends with what the tool said."""


@dataclass(frozen=True)
class Libraries:
    """Where a finished cache is."""

    directory: Path

    def command(self, main_class: str, arguments: Sequence[str], *, heap_megabytes: int, hosts_file: Path,
                options: Sequence[str] = ()) -> list[str]:
        """The command line of a small Java process: one collector thread, one compiler, shared classes."""
        jars = [self.directory / "speedwell.jar", *sorted((self.directory / "lib").glob("*.jar"))]
        return [
            "java", f"-Xmx{heap_megabytes}m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-XX:CICompilerCount=1", "-XX:ReservedCodeCacheSize=32m", "-XX:-UsePerfData", "-Xlog:disable",
            f"-XX:SharedArchiveFile={self.directory / 'classes.jsa'}", *options,
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPEN_PACKAGES),
            # No name server answers inside an emulated host; the file replaces every other look-up.
            f"-Djdk.net.hosts.file={hosts_file}", "-Djava.net.preferIPv4Stack=true",
            f"-Dlog4j.configuration=file:{HERE / 'log4j.properties'}", f"-Dhadoop.home.dir={self.directory}",
            "-cp", ":".join(map(str, jars)), f"speedwell.hdfs.{main_class}", *arguments]


def require_java() -> None:
    """Raises JavaMissing, naming what is not installed."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise JavaMissing(f"a real HDFS needs Java and Maven, and {', '.join(missing)} "
                          f"{'is' if len(missing) == 1 else 'are'} not installed: "
                          "apt-get install default-jdk-headless maven")


def default_cache() -> Path:
    """The user's cache directory of this project."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "speedwell"


def prepare(cache: Path | None = None, progress: Progress = lambda message: None) -> Libraries:
    """The libraries, fetched and built if they are not in the cache yet (about half a minute and 120 MB).

    Raises JavaMissing or LibrariesUnavailable.
    """
    require_java()
    directory = (cache or default_cache()) / f"hdfs-{_fingerprint()}"
    with exclusive(directory.with_suffix(".lock"), "fetching HDFS's libraries"):
        if not directory.exists():
            unfinished = Path(tempfile.mkdtemp(prefix="hdfs-unfinished-", dir=directory.parent))
            try:
                _fetch(unfinished, progress)
                _build(unfinished, progress)
                unfinished.rename(directory)
                # Its place is part of the archive, so that comes last. Without it all works, slower.
                _archive(Libraries(directory), progress)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return Libraries(directory)


def _fetch(directory: Path, progress: Progress) -> None:
    progress("fetching HDFS's libraries with Maven (64 MB, the first time only)")
    _run(["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-Dhadoop.version={HADOOP_VERSION}", COPY_DEPENDENCIES,
          "-DincludeScope=runtime", f"-DoutputDirectory={directory / 'lib'}"], "fetching HDFS's libraries")


def _build(directory: Path, progress: Progress) -> None:
    progress("compiling")
    classes = directory / "classes"
    sources = [str(source) for source in sorted((HERE / "java").glob("*.java"))]
    _run(["javac", "-nowarn", "-proc:none", "-cp", f"{directory / 'lib'}/*", "-d", str(classes), *sources],
         "compiling our part of HDFS's client")
    with zipfile.ZipFile(directory / "speedwell.jar", "w") as jar:
        for path in sorted(classes.rglob("*.class")):
            jar.write(path, path.relative_to(classes))
        for name in WEB_APPLICATIONS:       # Hadoop's jars come without, and its daemons do not start then
            for part in ("webapps", f"webapps/{name}", f"webapps/{name}/WEB-INF"):
                if f"{part}/" not in jar.namelist():
                    jar.mkdir(part)
            jar.writestr(f"webapps/{name}/WEB-INF/web.xml", "<web-app/>")
    shutil.rmtree(classes)


def _archive(libraries: Libraries, progress: Progress) -> None:
    """Run a NameNode, a DataNode and a client once and let the Java machine keep their classes."""
    progress("archiving the classes of a NameNode, a DataNode and a client")
    with tempfile.TemporaryDirectory() as scratch:
        site, hosts = Path(scratch) / "site.xml", Path(scratch) / "hosts"
        configuration.write_training(site, hosts, Path(scratch))
        archive = libraries.directory / "classes.jsa"
        argv = libraries.command("Training", [str(site), str(hosts)], heap_megabytes=256, hosts_file=hosts)
        argv = [f"-XX:ArchiveClassesAtExit={archive}" if "SharedArchiveFile" in word else word for word in argv]
        try:
            _run(argv, "the first run of HDFS on this machine")
        except ClusterError:
            shutil.rmtree(libraries.directory)
            raise


def _run(argv: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                              timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LibrariesUnavailable(f"{what} did not end within {TIMEOUT_SECONDS:g} s") from None
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-5:]
        raise LibrariesUnavailable(f"{what} failed:\n" + "\n".join(f"    {line}" for line in said))


def _fingerprint() -> str:
    """Names what the cache depends on: the versions, our sources, and the Java machine (for the archive)."""
    state = hashlib.sha256(HADOOP_VERSION.encode())
    for path in [HERE / "pom.xml", *sorted((HERE / "java").glob("*.java"))]:
        state.update(path.read_bytes())
    java = Path(shutil.which("java") or "java").resolve()
    state.update(f"{java} {java.stat().st_mtime_ns}".encode())
    return state.hexdigest()[:16]
