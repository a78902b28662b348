import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.stream.Collectors;
import org.scion.jpan.Constants;
import org.scion.jpan.Path;
import org.scion.jpan.PathMetadata;
import org.scion.jpan.Scion;
import org.scion.jpan.ScionDatagramChannel;
import org.scion.jpan.ScionService;
import org.scion.jpan.ScionSocketAddress;
import org.scion.jpan.ScionUtil;
import org.scion.jpan.Scmp;
import org.scion.jpan.ScmpSender;

/**
 * A SCION end host that the tests drive: one command, one line of output for everything that happened.
 *
 * <pre>
 * paths DAEMON ISD-AS           path HOPS mtu MTU, for every path
 * ping  DAEMON ISD-AS IP        echo HOPS ok|timeout, an SCMP echo over every path
 * send  DAEMON ISD-AS IP PORT   reply HOPS ok|wrong|timeout, a datagram over every path and its echo
 * serve DAEMON IP PORT          ready, then sends every datagram back over the path it came on, until killed
 * </pre>
 *
 * DAEMON is host:port. Exits 1 when a line says anything but ok.
 */
public final class Peer {
  private static final int REPLY_TIMEOUT_MS = 3000;
  private static final int PAYLOAD_BYTES = 900;
  private static boolean failed;

  public static void main(String[] args) throws Exception {
    System.setProperty(Constants.PROPERTY_SHIM, "false");
    try (Scion.CloseableService service = Scion.newServiceWithDaemon(args[1])) {
      switch (args[0]) {
        case "paths":
          for (Path path : paths(service, args[2], "127.0.0.1", 1)) {
            say("path %s mtu %d", hops(path), path.getMetadata().getMtu());
          }
          break;
        case "ping":
          ping(service, paths(service, args[2], args[3], Constants.SCMP_PORT));
          break;
        case "send":
          send(service, paths(service, args[2], args[3], Integer.parseInt(args[4])));
          break;
        case "serve":
          serve(service, new InetSocketAddress(args[2], Integer.parseInt(args[3])));
          break;
        default:
          throw new IllegalArgumentException("no command " + args[0]);
      }
    }
    System.exit(failed ? 1 : 0);
  }

  private static List<Path> paths(ScionService service, String isdAs, String ip, int port)
      throws Exception {
    return service.getPaths(ScionUtil.parseIA(isdAs), InetAddress.getByName(ip), port);
  }

  private static void ping(ScionService service, List<Path> paths) throws Exception {
    try (ScmpSender sender = Scmp.newSenderBuilder().setService(service).build()) {
      sender.setTimeOut(REPLY_TIMEOUT_MS);
      for (Path path : paths) {
        Scmp.EchoMessage answer = sender.sendEchoRequest(path, ByteBuffer.wrap(payload(path)));
        result("echo", path, answer.isTimedOut() ? "timeout" : "ok");
      }
    }
  }

  private static void send(ScionService service, List<Path> paths) throws Exception {
    for (Path path : paths) {
      try (ScionDatagramChannel channel = ScionDatagramChannel.open(service)) {
        channel.configureBlocking(false);
        byte[] sent = payload(path);
        channel.send(ByteBuffer.wrap(sent), path);
        ByteBuffer received = ByteBuffer.allocate(2000);
        long end = System.currentTimeMillis() + REPLY_TIMEOUT_MS;
        ScionSocketAddress from = null;
        while (from == null && System.currentTimeMillis() < end) {
          from = channel.receive(received);
          Thread.sleep(1);
        }
        received.flip();
        boolean same = received.equals(ByteBuffer.wrap(sent));
        result("reply", path, from == null ? "timeout" : same ? "ok" : "wrong");
      }
    }
  }

  private static void serve(ScionService service, InetSocketAddress local) throws Exception {
    try (ScionDatagramChannel channel = ScionDatagramChannel.open(service)) {
      channel.bind(local);
      channel.configureBlocking(true);
      say("ready");
      ByteBuffer buffer = ByteBuffer.allocate(2000);
      while (true) {
        buffer.clear();
        ScionSocketAddress from = channel.receive(buffer);
        buffer.flip();
        channel.send(buffer, from.getPath());
      }
    }
  }

  /** Differs for every path, so that an answer to another datagram is noticed. */
  private static byte[] payload(Path path) {
    String text = hops(path).repeat(PAYLOAD_BYTES).substring(0, PAYLOAD_BYTES);
    return text.getBytes(StandardCharsets.US_ASCII);
  }

  /** The interfaces of a path, as in 1-ff00:0:110#1,1-ff00:0:111#41; a dash inside one AS. */
  private static String hops(Path path) {
    List<PathMetadata.PathInterface> interfaces = path.getMetadata().getInterfacesList();
    String joined =
        interfaces.stream()
            .map(hop -> ScionUtil.toStringIA(hop.getIsdAs()) + "#" + hop.getId())
            .collect(Collectors.joining(","));
    return joined.isEmpty() ? "-" : joined;
  }

  private static void result(String what, Path path, String outcome) {
    failed |= !outcome.equals("ok");
    say("%s %s %s", what, hops(path), outcome);
  }

  private static void say(String format, Object... values) {
    System.out.println(String.format(format, values));
    System.out.flush();
  }
}
