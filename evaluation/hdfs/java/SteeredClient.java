package speedwell.hdfs;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.InetSocketAddress;
import java.net.URL;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.hdfs.DFSClient;
import org.apache.hadoop.hdfs.DFSUtilClient;
import org.apache.hadoop.hdfs.net.Peer;
import org.apache.hadoop.hdfs.protocol.DatanodeID;
import org.apache.hadoop.hdfs.security.token.block.BlockTokenIdentifier;
import org.apache.hadoop.net.NetUtils;
import org.apache.hadoop.security.token.Token;

/**
 * HDFS's client, whose data takes the path that the controller chooses.
 *
 * <p>The client has chosen its replica when it connects. Here the connection takes a local port first, asks
 * the controller for a path from that one replica to that port, and only then connects. All else is HDFS's.
 * Without an answer the data takes the default path.
 */
final class SteeredClient extends DFSClient {
  /** Where to ask, as http://HOST:PORT. */
  static final String CONTROLLER = "speedwell.controller";

  /** The fabric address of this host. */
  static final String LOCAL_HOST = "speedwell.local-host";

  private static final int TIMEOUT_MILLISECONDS = 5000;
  private static final ObjectMapper JSON = new ObjectMapper();

  private final Configuration configuration;
  private final ThreadLocal<Long> expectedBytes = ThreadLocal.withInitial(() -> 1L);
  private final ThreadLocal<List<String>> reads = ThreadLocal.withInitial(ArrayList::new);

  SteeredClient(Configuration configuration) throws IOException {
    super(FileSystem.getDefaultUri(configuration), configuration);
    this.configuration = configuration;
  }

  /** Says how much this thread will read over the connections that it opens from now on. */
  void expect(long bytes) {
    expectedBytes.set(Math.max(1L, bytes));
  }

  /** Tells the controller that this thread's reads are over; returns how many it had steered. */
  int finished() {
    List<String> ended = List.copyOf(reads.get());
    reads.get().clear();
    for (String read : ended) {
      try {
        request("DELETE", "/v1/reads/" + read, null);
      } catch (IOException error) {
        System.err.println("a read goes by its idle timeout only: " + error);
      }
    }
    return ended.size();
  }

  @Override
  public Peer newConnectedPeer(InetSocketAddress replica, Token<BlockTokenIdentifier> token, DatanodeID id)
      throws IOException {
    int timeout = getConf().getSocketTimeout();
    SocketChannel channel = SocketChannel.open();
    try {
      String localHost = configuration.get(LOCAL_HOST);
      channel.bind(new InetSocketAddress(localHost, 0));
      try {
        reads.get().add(askForPath(localHost, channel.socket().getLocalPort(), replica));
      } catch (IOException error) {
        System.err.println("a read takes the default path: " + error);
      }
      NetUtils.connect(channel.socket(), replica, timeout);
      Peer peer = DFSUtilClient.peerFromSocket(channel.socket());
      peer.setReadTimeout(timeout);
      peer.setWriteTimeout(timeout);
      return peer;
    } catch (IOException error) {
      channel.close();
      throw error;
    }
  }

  /** Returns the controller's name of the read; its path is in the switches then. */
  private String askForPath(String client, int clientPort, InetSocketAddress replica) throws IOException {
    String question = String.format(Locale.ROOT,
        "{\"client\": \"%s\", \"client_ports\": [%d], \"replicas\": [{\"host\": \"%s\", \"port\": %d}],"
            + " \"size_bytes\": %d, \"replica_policy\": \"nearest\", \"path_policy\": \"mayflower\"}",
        client, clientPort, replica.getAddress().getHostAddress(), replica.getPort(), expectedBytes.get());
    return request("POST", "/v1/reads", question).path("id").asText();
  }

  private JsonNode request(String method, String path, String body) throws IOException {
    HttpURLConnection connection =
        (HttpURLConnection) new URL(configuration.get(CONTROLLER) + path).openConnection();
    connection.setRequestMethod(method);
    connection.setConnectTimeout(TIMEOUT_MILLISECONDS);
    connection.setReadTimeout(TIMEOUT_MILLISECONDS);
    if (body != null) {
      connection.setRequestProperty("Content-Type", "application/json");
      connection.setDoOutput(true);
      try (OutputStream output = connection.getOutputStream()) {
        output.write(body.getBytes(StandardCharsets.UTF_8));
      }
    }
    if (connection.getResponseCode() >= 300) {
      throw new IOException("the controller answered " + connection.getResponseCode() + " to " + method + " " + path);
    }
    try (InputStream input = connection.getInputStream()) {
      byte[] answer = input.readAllBytes();
      return answer.length == 0 ? JSON.missingNode() : JSON.readTree(answer);
    }
  }
}
