// Reads partitions of a cluster to their ends, by assignment and in a group, and looks a time up in each: prints what it
// got. Arguments: address, then topic-partition@time. See java_client.py.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ReadAll {
    public static void main(String[] args) {
        List<TopicPartition> all = new ArrayList<>();
        Map<TopicPartition, Long> times = new HashMap<>();
        for (int i = 1; i < args.length; i++) {
            String[] asked = args[i].split("@");
            int at = asked[0].lastIndexOf('-');
            all.add(new TopicPartition(asked[0].substring(0, at), Integer.parseInt(asked[0].substring(at + 1))));
            times.put(all.get(all.size() - 1), Long.parseLong(asked[1]));
        }
        for (String isolation : List.of("read_uncommitted", "read_committed")) {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(args[0], isolation)) {
                consumer.assign(all);
                consumer.seekToBeginning(all);
                read(consumer, all, isolation);
            }
        }
        Set<String> topics = all.stream().map(TopicPartition::topic).collect(Collectors.toCollection(HashSet::new));
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(args[0], "read_uncommitted")) {
            consumer.subscribe(topics);
            read(consumer, all, "subscribed");
            consumer.commitSync();
            consumer.committed(new HashSet<>(all)).forEach((place, one) ->
                System.out.println(String.join("\t", "committed", place.toString(), Long.toString(one.offset()))));
            for (Map.Entry<TopicPartition, OffsetAndTimestamp> one : consumer.offsetsForTimes(times).entrySet()) {
                String offset = one.getValue() == null ? "-1" : Long.toString(one.getValue().offset());
                System.out.println(String.join("\t", "time", one.getKey().toString(), offset));
            }
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String address, String isolation) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("group.id", "java");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", isolation);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void read(KafkaConsumer<byte[], byte[]> consumer, List<TopicPartition> all, String label) {
        Map<TopicPartition, Long> ends = consumer.endOffsets(all);
        long deadline = System.currentTimeMillis() + 120_000;
        while (!done(consumer, ends)) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("the ends " + ends + " were not reached");
            }
            for (ConsumerRecord<byte[], byte[]> one : consumer.poll(Duration.ofMillis(500))) {
                List<String> shown = new ArrayList<>(List.of(
                    label, one.topic() + "-" + one.partition(), Long.toString(one.offset()), text(one.key()), text(one.value())));
                for (Header header : one.headers()) {
                    shown.add(header.key());
                    shown.add(text(header.value()));
                }
                System.out.println(String.join("\t", shown));
            }
        }
    }

    private static boolean done(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, Long> ends) {
        return consumer.assignment().containsAll(ends.keySet())
            && ends.entrySet().stream().allMatch(one -> consumer.position(one.getKey()) >= one.getValue());
    }

    private static String text(byte[] data) {
        return data == null ? "null" : Base64.getEncoder().encodeToString(data);
    }
}
