import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.epoll.EpollEventLoopGroup;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.DateFormatter;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpObjectAggregator;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.QueryStringDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Date;

/**
 * An HTTP server that describes each request in its answer, or answers with {@code ?size=N} bytes. A request with
 * {@code Connection: close} gets an answer without Content-Length, which ends at FIN; {@code /echo} returns the body.
 *
 * <p>Arguments: nio or epoll, the port, the threads that serve connections (0: the one that accepts serves them too).
 */
public final class Snoop extends SimpleChannelInboundHandler<FullHttpRequest> {
    public static void main(String[] arguments) throws InterruptedException {
        boolean epoll = arguments[0].equals("epoll");
        int port = Integer.parseInt(arguments[1]);
        int threads = Integer.parseInt(arguments[2]);
        EventLoopGroup acceptor = epoll ? new EpollEventLoopGroup(1) : new NioEventLoopGroup(1);
        EventLoopGroup workers = threads == 0 ? acceptor : epoll ? new EpollEventLoopGroup(threads) : new NioEventLoopGroup(threads);
        new ServerBootstrap()
                .group(acceptor, workers)
                .channel(epoll ? EpollServerSocketChannel.class : NioServerSocketChannel.class)
                .option(ChannelOption.SO_BACKLOG, 4096)
                .childOption(ChannelOption.TCP_NODELAY, true)
                .childHandler(
                        new ChannelInitializer<SocketChannel>() {
                            @Override
                            protected void initChannel(SocketChannel channel) {
                                channel.pipeline()
                                        .addLast(new HttpServerCodec(), new HttpObjectAggregator(16 << 20), new Snoop());
                            }
                        })
                .bind(port)
                .sync()
                .channel()
                .closeFuture()
                .sync();
    }

    @Override
    protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) {
        QueryStringDecoder uri = new QueryStringDecoder(request.uri());
        var body =
                switch (uri.path()) {
                    case "/echo" -> request.content().retain();
                    default ->
                            uri.parameters().containsKey("size")
                                    ? Unpooled.wrappedBuffer(
                                            "x".repeat(Integer.parseInt(uri.parameters().get("size").get(0)))
                                                    .getBytes(StandardCharsets.US_ASCII))
                                    : Unpooled.copiedBuffer(describe(request), StandardCharsets.UTF_8);
                };
        var response = new DefaultFullHttpResponse(HttpVersion.HTTP_1_1, HttpResponseStatus.OK, body);
        response.headers().set(HttpHeaderNames.CONTENT_TYPE, "text/plain; charset=UTF-8");
        response.headers().set(HttpHeaderNames.SERVER, "snoop");
        response.headers().set(HttpHeaderNames.DATE, DateFormatter.format(new Date()));
        if (HttpUtil.isKeepAlive(request)) {
            response.headers().set(HttpHeaderNames.CONTENT_LENGTH, body.readableBytes());
            context.write(response);
        } else {
            response.headers().set(HttpHeaderNames.CONNECTION, "close");
            context.write(response).addListener(ChannelFutureListener.CLOSE);
        }
    }

    @Override
    public void channelReadComplete(ChannelHandlerContext context) {
        context.flush();
    }

    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        context.close();
    }

    private static String describe(FullHttpRequest request) {
        StringBuilder text = new StringBuilder("A request for this server\r\n");
        text.append("method: ").append(request.method()).append("\r\n");
        text.append("version: ").append(request.protocolVersion()).append("\r\n");
        text.append("uri: ").append(request.uri()).append("\r\n");
        for (var field : request.headers()) {
            text.append("field: ").append(field.getKey()).append(" = ").append(field.getValue()).append("\r\n");
        }
        return text.append("end of content\r\n").toString();
    }
}
