package speedwell.hdfs;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import org.apache.hadoop.conf.Configuration;

/**
 * Does once, in one process, what the NameNode and the hosts do: {@code Training SITE_FILE LOCAL_FILE}.
 *
 * <p>The Java machine keeps the classes that it loaded in an archive, from which the real processes start
 * several times as fast.
 */
public final class Training {
  private Training() {}

  public static void main(String[] arguments) {
    Processes.exitAfter(() -> train(Processes.configuration(arguments[0]), arguments[1]));
  }

  private static void train(Configuration configuration, String localFile) throws Exception {
    String address = NameNodeProcess.start(configuration).getNameNodeAddressHostPortString();
    configuration.set("fs.defaultFS", "hdfs://" + address);
    Host.startDataNode(configuration);
    Host host = new Host(configuration);
    ObjectMapper json = new ObjectMapper();
    host.perform(json.createObjectNode().put("path", "/training").put("store", localFile));
    host.perform(json.createObjectNode().put("path", "/training").put("size_bytes", new File(localFile).length()))
        .tell(json.createObjectNode());
  }
}
