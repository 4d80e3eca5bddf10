package speedwell.hdfs;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/** Runs HDFS's NameNode, which it formats the first time: {@code NameNodeProcess SITE_FILE}. */
public final class NameNodeProcess {
  private NameNodeProcess() {}

  /** Prints {@code ready ADDRESS} when the NameNode serves, and ends with its standard input. */
  public static void main(String[] arguments) {
    Processes.exitAfter(() -> {
      NameNode nameNode = start(Processes.configuration(arguments[0]));
      System.out.println("ready " + nameNode.getNameNodeAddressHostPortString());
      System.in.readAllBytes();
    });
  }

  static NameNode start(Configuration configuration) throws IOException {
    URI directory = URI.create(configuration.get("dfs.namenode.name.dir"));
    if (!new File(directory.getPath(), "current").exists()) {
      DefaultMetricsSystem.setMiniClusterMode(true); // formatting takes the names of the NameNode's metrics
      NameNode.format(configuration);
    }
    return NameNode.createNameNode(new String[0], configuration);
  }
}
