import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * One client of the fairness benchmark, until its process is ended.
 *
 * <p>Options: kind (flood, shared, auto, consume or quiet), namesrv, topic, group, size; for a flood
 * and a shared client batch, for these and auto in_flight, for a quiet producer and a shared client
 * interval_ms, for a shared client consumer_group.
 *
 * <p>A flood sends asynchronous batches. A shared client does the same, and over the same
 * connection it pulls and asks for the end of a queue, one request of each kind at a time. Auto
 * sends single messages, of which the client makes batches. A consumer is a push consumer that only
 * counts, and a quiet producer sends one message at a time and waits for its answer.
 *
 * <p>Records, twice a second: {@code count} with the messages so far and the sends that failed; of
 * a quiet producer {@code sent} after each send, with the time that it took; of a shared client
 * {@code pull} and {@code end} after each such request, with the time that it took.
 */
final class FairnessLoad {
    private final Map<String, String> options;
    private final AtomicLong count = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();

    private FairnessLoad(Map<String, String> options) {
        this.options = options;
    }

    public static void main(String[] args) {
        Leashed.endWithParent();
        FairnessLoad load = new FairnessLoad(Harness.options(args));
        try {
            switch (load.options.get("kind")) {
                case "flood" -> load.flood(load.producer());
                case "shared" -> load.shared();
                case "auto" -> load.auto();
                case "consume" -> load.consume();
                case "quiet" -> load.quiet();
                default -> throw new IllegalArgumentException(load.options.get("kind"));
            }
        } catch (Exception e) {
            Harness.fail(e);
        }
    }

    private int number(String option) {
        return Integer.parseInt(options.get(option));
    }

    private DefaultMQProducer newProducer() {
        DefaultMQProducer producer = new DefaultMQProducer(options.get("group"));
        producer.setNamesrvAddr(options.get("namesrv"));
        return producer;
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = newProducer();
        producer.start();
        return producer;
    }

    private byte[] body() {
        byte[] body = new byte[number("size")];
        Arrays.fill(body, (byte) 'x');
        return body;
    }

    private void report() {
        Thread thread = new Thread(() -> {
            while (true) {
                Harness.emit("event", "count", "at_ms", System.currentTimeMillis(),
                    "count", count.get(), "failed", failed.get());
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(500));
            }
        }, "report");
        thread.setDaemon(true);
        thread.start();
    }

    private SendCallback counting(int messages, Semaphore permits) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                count.addAndGet(messages);
                permits.release();
            }

            @Override
            public void onException(Throwable cause) {
                failed.incrementAndGet();
                permits.release();
            }
        };
    }

    private void flood(DefaultMQProducer producer) throws Exception {
        int batch = number("batch");
        byte[] body = body();
        String topic = options.get("topic");
        Semaphore permits = new Semaphore(number("in_flight"));
        SendCallback callback = counting(batch, permits);
        report();
        while (true) {
            permits.acquire();
            List<Message> messages = new ArrayList<>(batch);
            for (int i = 0; i < batch; i++) {
                messages.add(new Message(topic, body));
            }
            try {
                producer.send(messages, callback);
            } catch (Exception e) {
                callback.onException(e);
            }
        }
    }

    private void auto() throws Exception {
        DefaultMQProducer producer = newProducer();
        producer.setAutoBatch(true);
        producer.start();
        byte[] body = body();
        String topic = options.get("topic");
        Semaphore permits = new Semaphore(number("in_flight"));
        SendCallback callback = counting(1, permits);
        report();
        while (true) {
            permits.acquire();
            // It reports each failure to the callback and throws none.
            producer.send(new Message(topic, body), callback);
        }
    }

    @SuppressWarnings("deprecation") // the pull consumer that sends a request when it is told to
    private void shared() throws Exception {
        DefaultMQProducer producer = newProducer();
        producer.setInstanceName("shared");
        producer.start();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.get("consumer_group"));
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setInstanceName("shared");
        // Otherwise this kind of consumer has a client of its own.
        consumer.setEnableStreamRequestType(producer.isEnableStreamRequestType());
        consumer.start();
        if (producer.getDefaultMQProducerImpl().getMqClientFactory()
            != consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()) {
            throw new IllegalStateException("two clients: " + producer.buildMQClientId() + " and "
                + consumer.buildMQClientId());
        }
        List<MessageQueue> queues =
            new ArrayList<>(consumer.fetchSubscribeMessageQueues(options.get("topic")));
        long[] offsets = new long[queues.size()];
        repeat("pull", turn -> {
            int which = turn % offsets.length;
            PullResult found = consumer.pull(queues.get(which), "*", offsets[which], 32);
            offsets[which] = found.getNextBeginOffset();
            return found.getMsgFoundList() == null ? 0 : found.getMsgFoundList().size();
        });
        repeat("end", turn -> {
            consumer.maxOffset(queues.get(turn % offsets.length));
            return 0;
        });
        flood(producer);
    }

    /** A request; tells how many messages it brought. */
    private interface Request {
        int ask(int turn) throws Exception;
    }

    /** Asks in a thread of its own, again and again, with a pause between two requests. */
    private void repeat(String kind, Request request) {
        long interval = TimeUnit.MILLISECONDS.toNanos(number("interval_ms"));
        Thread thread = new Thread(() -> {
            for (int turn = 0; true; turn = (turn + 1) & Integer.MAX_VALUE) {
                boolean answered = true;
                int messages = 0;
                long began = System.nanoTime();
                try {
                    messages = request.ask(turn);
                } catch (Exception e) {
                    answered = false;
                }
                long took = System.nanoTime() - began;
                Harness.emit("event", kind, "at_ms", System.currentTimeMillis(),
                    "ms", took / 1e6, "answered", answered, "messages", messages);
                LockSupport.parkNanos(interval);
            }
        }, kind);
        thread.setDaemon(true);
        thread.start();
    }

    private void consume() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.get("group"));
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(options.get("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        report();
        Thread.currentThread().join();
    }

    private void quiet() throws Exception {
        DefaultMQProducer producer = producer();
        byte[] body = body();
        long interval = TimeUnit.MILLISECONDS.toNanos(number("interval_ms"));
        long due = System.nanoTime();
        while (true) {
            boolean stored = true;
            long began = System.nanoTime();
            try {
                producer.send(new Message(options.get("topic"), body));
            } catch (Exception e) {
                stored = false;
            }
            long took = System.nanoTime() - began;
            Harness.emit("event", "sent", "at_ms", System.currentTimeMillis(),
                "ms", took / 1e6, "stored", stored);
            due = Math.max(due + interval, System.nanoTime());
            LockSupport.parkNanos(due - System.nanoTime());
        }
    }
}
