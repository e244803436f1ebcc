import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The producers of a {@link ClientDriver}, by name. */
final class Producers {
    private static final int SEND_TIMEOUT_MS = 10_000;

    private final Map<String, DefaultMQProducer> started = new ConcurrentHashMap<>();
    private final Map<String, Sender> senders = new ConcurrentHashMap<>();

    DefaultMQProducer get(String name) {
        DefaultMQProducer producer = started.get(name);
        if (producer == null) {
            throw new IllegalArgumentException("no producer " + name);
        }
        return producer;
    }

    /**
     * Options: those of {@link #configure}, group, trace (report each message to the trace topic),
     * transactional (for {@link #sendInTransaction}).
     */
    void start(ClientDriver.Options options) throws Exception {
        String group = options.text("group");
        DefaultMQProducer producer;
        if (options.has("transactional")) {
            TransactionMQProducer transactional = new TransactionMQProducer(group);
            transactional.setTransactionListener(new Decider());
            producer = transactional;
        } else {
            producer = new DefaultMQProducer(group, options.has("trace"), null);
        }
        configure(producer, options);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.start();
        started.put(options.text("name"), producer);
    }

    /**
     * What producers and consumers share: who they are, and how soon they notice a change.
     * Options: name, namesrv, vip (use the broker's second port).
     */
    static void configure(ClientConfig client, ClientDriver.Options options) {
        client.setNamesrvAddr(options.text("namesrv"));
        client.setInstanceName(options.text("name"));
        client.setPollNameServerInterval(1_000);
        client.setHeartbeatBrokerInterval(1_000);
        client.setMqClientApiTimeout(10_000); // on a busy machine the first request takes seconds
        client.setVipChannelEnabled(options.has("vip"));
    }

    void stop(String name) {
        DefaultMQProducer producer = started.remove(name);
        if (producer != null) {
            producer.shutdown();
        }
    }

    /**
     * One numbered message. Options: topic, prefix, tags (used in turn), delay (a level), size.
     * Its key is the prefix and the number, its body begins with the key.
     */
    static Message message(ClientDriver.Options options, int number) {
        String key = options.text("prefix", "m") + "-" + number;
        StringBuilder body = new StringBuilder(key);
        for (int i = 0; body.length() < options.number("size", 0); i++) {
            body.append(' ').append(i);
        }
        String[] tags = options.text("tags", "").split(",");
        Message message = new Message(options.text("topic"), tags[number % tags.length], key,
            body.toString().getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("number", String.valueOf(number));
        if (options.has("delay")) {
            message.setDelayTimeLevel(options.number("delay"));
        }
        return message;
    }

    /**
     * Sends numbered messages. Options: those of {@link #message}, name, how (sync, async, oneway,
     * batch), count, first (number), queue (an id; without it the client chooses).
     */
    List<Object> send(ClientDriver.Options options) throws Exception {
        List<Message> messages = new ArrayList<>();
        int first = options.number("first", 0);
        for (int i = 0; i < options.number("count"); i++) {
            messages.add(message(options, first + i));
        }
        DefaultMQProducer producer = get(options.text("name"));
        MessageQueue queue = options.has("queue") ? queue(producer, options) : null;
        List<Object> results = Collections.synchronizedList(new ArrayList<>());
        switch (options.text("how")) {
            case "sync":
                for (Message message : messages) {
                    results.add(shown(message,
                        queue == null ? producer.send(message) : producer.send(message, queue)));
                }
                break;
            case "async":
                sendAsync(producer, messages, results);
                break;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                break;
            case "batch":
                results.add(shown(messages.get(0),
                    queue == null ? producer.send(messages) : producer.send(messages, queue)));
                break;
            default:
                throw new IllegalArgumentException("no such way to send");
        }
        return results;
    }

    private static MessageQueue queue(DefaultMQProducer producer, ClientDriver.Options options)
        throws Exception {
        for (MessageQueue queue : producer.fetchPublishMessageQueues(options.text("topic"))) {
            if (queue.getQueueId() == options.number("queue")) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no such queue");
    }

    private static Object shown(Message message, SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not sent: " + result);
        }
        return Arrays.asList(message.getKeys(), result.getMessageQueue().getQueueId(),
            result.getQueueOffset(), result.getMsgId());
    }

    private static void sendAsync(
        DefaultMQProducer producer, List<Message> messages, List<Object> results) throws Exception {
        CountDownLatch open = new CountDownLatch(messages.size());
        List<Throwable> failures = Collections.synchronizedList(new ArrayList<>());
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results.add(shown(message, result));
                    open.countDown();
                }

                @Override
                public void onException(Throwable cause) {
                    failures.add(cause);
                    open.countDown();
                }
            });
        }
        if (!open.await(60, TimeUnit.SECONDS) || !failures.isEmpty()) {
            throw new IllegalStateException("not all sent: " + failures);
        }
    }

    // ---- in the background -------------------------------------------------------------------

    /**
     * Sends messages one after the other, to the queues in turn, each again until it is
     * acknowledged. Options: those of {@link #message}, name.
     */
    void keepSending(ClientDriver.Options options) throws Exception {
        DefaultMQProducer producer = get(options.text("name"));
        Sender sender = new Sender(producer, options);
        senders.put(options.text("name"), sender);
        sender.start();
    }

    /** Ends {@link #keepSending}: the numbers of acknowledged messages and of failed attempts. */
    List<Integer> stopSending(ClientDriver.Options options) throws Exception {
        Sender sender = senders.remove(options.text("name"));
        sender.ending = true;
        sender.join();
        return List.of(sender.number, sender.failures);
    }

    private static final class Sender extends Thread {
        private final DefaultMQProducer producer;
        private final ClientDriver.Options options;
        private final List<MessageQueue> queues;
        private volatile boolean ending;
        private int number;
        private int failures;

        Sender(DefaultMQProducer producer, ClientDriver.Options options) throws Exception {
            super("sender");
            this.producer = producer;
            this.options = options;
            this.queues = producer.fetchPublishMessageQueues(options.text("topic"));
        }

        @Override
        public void run() {
            while (!ending) {
                try {
                    MessageQueue queue = queues.get(number % queues.size());
                    SendResult result = producer.send(message(options, number), queue, 3_000);
                    if (result.getSendStatus() != SendStatus.SEND_OK) {
                        throw new IllegalStateException("not sent: " + result);
                    }
                    Harness.emit("event", "sent", "producer", options.text("name"),
                        "number", number, "queue", result.getMessageQueue().getQueueId(),
                        "offset", result.getQueueOffset());
                    number++;
                } catch (Exception e) {
                    failures++;
                    pause(100);
                }
                pause(2);
            }
        }

        private static void pause(long milliseconds) {
            try {
                Thread.sleep(milliseconds);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    // ---- transactions and requests -----------------------------------------------------------

    /**
     * Options: those of {@link #message}, name, first, answer (of the local transaction), later
     * (the answers to checks, in turn; the last one stays).
     */
    String sendInTransaction(ClientDriver.Options options) throws Exception {
        Message message = message(options, options.number("first"));
        message.putUserProperty("later", options.text("later", "UNKNOW"));
        SendResult result = ((TransactionMQProducer) get(options.text("name")))
            .sendMessageInTransaction(message, options.text("answer"));
        return result.getSendStatus().name();
    }

    private static final class Decider implements TransactionListener {
        private final Map<String, Integer> checks = new ConcurrentHashMap<>();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object answer) {
            return LocalTransactionState.valueOf((String) answer);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            int check = checks.merge(message.getKeys(), 1, Integer::sum);
            String[] answers = message.getUserProperty("later").split(",");
            String answer = answers[Math.min(check, answers.length) - 1];
            Harness.emit("event", "checked", "keys", message.getKeys(), "answer", answer,
                "times", message.getProperty("TRANSACTION_CHECK_TIMES"),
                "topic", message.getTopic(), "id", message.getTransactionId());
            return LocalTransactionState.valueOf(answer);
        }
    }

    /** Sends a request and waits for its reply. Options: those of message, name, first, timeout_ms. */
    String request(ClientDriver.Options options) throws Exception {
        Message reply = get(options.text("name"))
            .request(message(options, options.number("first")), options.number("timeout_ms"));
        return new String(reply.getBody(), StandardCharsets.UTF_8);
    }
}
