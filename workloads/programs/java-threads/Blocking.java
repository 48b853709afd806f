import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * HTTP/1.1 with blocking calls, as servlet containers do it: a thread of a pool for each connection, that waits in read(), or with a
 * time-out, which the JDK makes of poll(). GET /?size=N answers N bytes, POST /echo what came.
 */
final class Blocking {
    public static void main(String[] arguments) throws IOException {
        ExecutorService pool = Executors.newCachedThreadPool();
        try (ServerSocket listener = new ServerSocket(Integer.parseInt(arguments[0]), 1000)) {
            for (int count = 0; ; count++) {
                Socket connection = listener.accept();
                connection.setTcpNoDelay(true);
                connection.setSoTimeout(count % 2 == 0 ? 0 : 60_000);
                pool.execute(() -> serve(connection));
            }
        }
    }

    private static void serve(Socket connection) {
        try (connection) {
            InputStream in = new BufferedInputStream(connection.getInputStream(), 65536);
            OutputStream out = connection.getOutputStream();
            for (String request = line(in); !request.isEmpty(); request = line(in)) {
                int length = 0;
                boolean close = false;
                for (String header = line(in).toLowerCase(); !header.isEmpty(); header = line(in).toLowerCase()) {
                    if (header.startsWith("content-length:")) {
                        length = Integer.parseInt(header.substring(15).trim());
                    }
                    close |= header.equals("connection: close");
                }
                byte[] body = in.readNBytes(length);
                int size = request.indexOf("size=");
                if (size >= 0) {
                    body = new byte[Integer.parseInt(request.substring(size + 5).split("[& ]")[0])];
                    Arrays.fill(body, (byte) 'x');
                }
                String head = "HTTP/1.1 200 OK\r\nContent-Length: " + body.length + "\r\n\r\n";
                byte[] answer = Arrays.copyOf(head.getBytes(StandardCharsets.US_ASCII), head.length() + body.length);
                System.arraycopy(body, 0, answer, head.length(), body.length);
                out.write(answer);
                if (close) {
                    return;
                }
            }
        } catch (SocketTimeoutException idle) {
            // Closed, as an idle connection is.
        } catch (IOException gone) {
            System.err.println(gone);
        }
    }

    /** A line without its end; empty at the end of the connection. */
    private static String line(InputStream in) throws IOException {
        StringBuilder line = new StringBuilder();
        for (int next = in.read(); next >= 0 && next != '\n'; next = in.read()) {
            if (next != '\r') {
                line.append((char) next);
            }
        }
        return line.toString();
    }
}
