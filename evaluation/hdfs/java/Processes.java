package speedwell.hdfs;

import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.HdfsConfiguration;

/** What all processes do alike. */
final class Processes {
  private Processes() {}

  /**
   * Hadoop's configuration with our file on top. The file is named instead of found on the class path: an
   * archive of classes is of no use to a class path that holds directories.
   */
  static Configuration configuration(String siteFile) {
    Configuration configuration = new HdfsConfiguration();
    configuration.addResource(new Path(new File(siteFile).getAbsolutePath()));
    return configuration;
  }

  /** Runs something and ends the process, with status 1 if it failed, whatever threads Hadoop has started. */
  static void exitAfter(Task task) {
    try {
      task.run();
      System.exit(0);
    } catch (Throwable error) {
      error.printStackTrace();
      Runtime.getRuntime().halt(1);
    }
  }

  /** Something to run. */
  interface Task {
    void run() throws Exception;
  }
}
