package speedwell.hdfs;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DFSClient;
import org.apache.hadoop.hdfs.DFSInputStream;
import org.apache.hadoop.hdfs.protocol.DatanodeInfo;
import org.apache.hadoop.hdfs.protocol.LocatedBlock;
import org.apache.hadoop.hdfs.server.datanode.DataNode;

/**
 * What runs on one host: HDFS's DataNode, and an application that reads files with HDFS's own client.
 * {@code Host SITE_FILE}.
 *
 * <p>It speaks JSON, an object a line, and ends with its input. Each line asks for one operation, to begin at
 * once (the first when the NameNode knows the DataNode); many may be under way:
 *
 * <pre>
 * {"id"}                                    answers that it is there
 * {"id", "path", "size_bytes", "steered"}   reads a whole file of this size; steered: over the path that the
 *                                           controller chooses, else over the default paths
 * {"id", "path", "store", "replicas"}       writes a copy of the local file "store" to the DataNodes at the
 *                                           addresses "replicas" (HOST:PORT), over the management network
 * {"id", "abandon"}                         ends all reads that run, with an error
 * </pre>
 *
 * Answers, in any order, are {@code {"id", "started", "finished", "bytes", "sources", "steered"}} or
 * {@code {"id", "error"}}; times are seconds of the machine's monotonic clock, sources the host names of the
 * DataNodes that were read from, or that hold what was written.
 */
public final class Host {
  private static final int BUFFER_BYTES = 1 << 16;
  private static final int ERROR_CHARACTERS = 1000;
  private static final long REPORT_SECONDS = 30;
  private static final long POLL_MILLISECONDS = 20;
  private static final ObjectMapper JSON = new ObjectMapper();

  private final DFSClient direct;
  private final SteeredClient steered;
  private final DFSClient storing;
  private final OutputStream answers = new FileOutputStream(FileDescriptor.out);
  private final AtomicInteger abandoned = new AtomicInteger();

  Host(Configuration configuration) throws IOException {
    direct = new DFSClient(FileSystem.getDefaultUri(configuration), configuration);
    steered = new SteeredClient(configuration);
    Configuration overManagement = new Configuration(configuration);
    overManagement.set("dfs.client.use.datanode.hostname", "false");
    storing = new DFSClient(FileSystem.getDefaultUri(configuration), overManagement);
  }

  public static void main(String[] arguments) {
    Processes.exitAfter(() -> {
      Configuration configuration = Processes.configuration(arguments[0]);
      startDataNode(configuration);
      new Host(configuration).serve();
    });
  }

  /** Returns once the NameNode knows the DataNode. */
  static void startDataNode(Configuration configuration) throws Exception {
    DataNode dataNode = DataNode.createDataNode(new String[0], configuration);
    while (!dataNode.isDatanodeFullyStarted()) {
      TimeUnit.MILLISECONDS.sleep(POLL_MILLISECONDS);
    }
  }

  private void serve() throws IOException {
    ExecutorService threads = Executors.newCachedThreadPool();
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      JsonNode request = JSON.readTree(line);
      threads.execute(() -> answer(request));
    }
  }

  private void answer(JsonNode request) {
    ObjectNode answer = JSON.createObjectNode().put("id", request.path("id").asLong());
    try {
      perform(request).tell(answer);
    } catch (Exception error) {
      String message = error.toString();
      answer.put("error", message.substring(0, Math.min(message.length(), ERROR_CHARACTERS)));
    }
    try {
      // one write of less than PIPE_BUF bytes: lines of several hosts do not mix
      byte[] line = (JSON.writeValueAsString(answer) + "\n").getBytes(StandardCharsets.UTF_8);
      answers.write(line);
    } catch (IOException nobodyListens) {
      Runtime.getRuntime().halt(1);
    }
  }

  Tally perform(JsonNode request) throws IOException, InterruptedException {
    Tally tally = new Tally();
    if (request.has("store")) {
      store(request, tally);
    } else if (request.has("abandon")) {
      abandoned.incrementAndGet();
    } else if (!request.path("path").asText().isEmpty()) {
      read(request, tally);
    }
    return tally;
  }

  private void read(JsonNode request, Tally tally) throws IOException {
    boolean steer = request.path("steered").asBoolean();
    int begun = abandoned.get();
    try (DFSInputStream source = (steer ? steered : direct).open(request.path("path").asText())) {
      steered.expect(source.getFileLength());
      byte[] buffer = new byte[BUFFER_BYTES];
      for (int count = source.read(buffer); count >= 0; count = source.read(buffer)) {
        tally.bytes += count;
        tally.holds(source.getCurrentDatanode());
        if (abandoned.get() != begun) {
          throw new IOException("the read was abandoned");
        }
      }
      tally.end();
      if (tally.bytes != request.path("size_bytes").asLong()) {
        throw new IOException("the file has " + tally.bytes + " bytes, not " + request.path("size_bytes"));
      }
    } finally {
      tally.steered = steered.finished() > 0;
    }
  }

  private void store(JsonNode request, Tally tally) throws IOException, InterruptedException {
    String path = request.path("path").asText();
    List<InetSocketAddress> favoured = new ArrayList<>();
    for (JsonNode address : request.path("replicas")) {
      String[] parts = address.asText().split(":");
      favoured.add(new InetSocketAddress(parts[0], Integer.parseInt(parts[1])));
    }
    short replication = (short) Math.max(1, favoured.size());
    try (InputStream source = Files.newInputStream(Path.of(request.path("store").asText()));
        OutputStream target = storing.create(path, FsPermission.getFileDefault(),
            EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE),
            true, replication, storing.getConf().getDefaultBlockSize(), null, BUFFER_BYTES, null,
            favoured.toArray(new InetSocketAddress[0]))) {
      byte[] buffer = new byte[BUFFER_BYTES];
      for (int count = source.read(buffer); count >= 0; count = source.read(buffer)) {
        target.write(buffer, 0, count);
        tally.bytes += count;
      }
    }
    tally.end();
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(REPORT_SECONDS);
    do { // a DataNode reports what it has a little later
      tally.hosts.clear();
      for (LocatedBlock block : storing.getLocatedBlocks(path, 0).getLocatedBlocks()) {
        for (DatanodeInfo holder : block.getLocations()) {
          tally.holds(holder);
        }
      }
      TimeUnit.MILLISECONDS.sleep(POLL_MILLISECONDS);
    } while (tally.hosts.size() < replication && System.nanoTime() < deadline);
  }

  /** What has gone by, when, and whom it came from or went to. */
  static final class Tally {
    boolean steered;
    private final long started = System.nanoTime();
    private long finished;
    private long bytes;
    private final List<String> hosts = new ArrayList<>();

    void holds(DatanodeInfo node) {
      if (node != null && !hosts.contains(node.getHostName())) {
        hosts.add(node.getHostName());
      }
    }

    /** Time stops here. */
    void end() {
      finished = System.nanoTime();
    }

    void tell(ObjectNode answer) {
      answer.put("started", started / 1e9).put("finished", finished / 1e9).put("bytes", bytes);
      answer.put("steered", steered);
      hosts.forEach(answer.putArray("sources")::add);
    }
  }
}
