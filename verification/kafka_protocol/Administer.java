// Asks a cluster for all that Kafka's admin client can ask a served log directory for, and for what interfaces such as
// Kafka UI ask beside it; tries to delete topics, to produce and to join by the new protocol: prints what it got. Arguments: address, group. See java_client.py.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Administer {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        try (Admin admin = Admin.create(settings)) {
            DescribeClusterResult cluster = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            say("brokers", cluster.nodes().get().size());
            say("controller", cluster.controller().get().id(), cluster.authorizedOperations().get());
            admin.describeFeatures().featureMetadata().get();
            Map<String, TopicDescription> topics = new TreeMap<>(admin.describeTopics(
                admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get()).allTopicNames().get());
            List<Uuid> ids = new ArrayList<>();
            Map<TopicPartition, OffsetSpec> ends = new HashMap<>();
            Map<TopicPartition, OffsetSpec> starts = new HashMap<>();
            List<ConfigResource> resources = new ArrayList<>(List.of(new ConfigResource(ConfigResource.Type.BROKER, "1")));
            for (TopicDescription topic : topics.values()) {
                ids.add(topic.topicId());
                resources.add(new ConfigResource(ConfigResource.Type.TOPIC, topic.name()));
                for (TopicPartitionInfo one : topic.partitions()) {
                    TopicPartition place = new TopicPartition(topic.name(), one.partition());
                    ends.put(place, OffsetSpec.latest());
                    starts.put(place, OffsetSpec.earliest());
                    say("partition", place, one.leader().id(), one.isr().size(), one.elr().size(), one.lastKnownElr().size());
                }
            }
            say("by id", admin.describeTopics(TopicCollection.ofTopicIds(ids)).allTopicIds().get().size());
            admin.listOffsets(starts).all().get().forEach((place, one) -> say("start", place, one.offset()));
            admin.listOffsets(ends).all().get().forEach((place, one) -> say("end", place, one.offset()));
            DescribeConfigsOptions whole = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
            admin.describeConfigs(resources, whole).all().get().forEach((resource, config) ->
                config.entries().forEach(one -> say("config", resource.name(), one.name(), one.value())));
            admin.listGroups().all().get().forEach(one -> say("group", one.groupId(), one.groupState().get()));
            say("members", admin.describeConsumerGroups(List.of(args[1])).all().get().get(args[1]).members().size());
            admin.listConsumerGroupOffsets(args[1]).partitionsToOffsetAndMetadata().get().forEach((place, one) ->
                say("position", place, one.offset(), one.metadata()));
            admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).values().forEach(directory ->
                directory.replicaInfos().forEach((place, one) -> say("size", place, one.size())));
            say("positions", admin.listConsumerGroupOffsets(Map.of(args[1], new ListConsumerGroupOffsetsSpec())).all().get()
                .get(args[1]).size());
            refused("acls", admin.describeAcls(AclBindingFilter.ANY).values());
            refused("producers", admin.describeProducers(ends.keySet()).all());
            refused("quotas", admin.describeClientQuotas(ClientQuotaFilter.all()).entities());
            refused("transactions", admin.listTransactions().all());
            refused("deletion", admin.deleteTopics(topics.keySet()).all());
            say("still", admin.listTopics().names().get().size());
        }
        Properties producing = new Properties();
        producing.putAll(settings);
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(producing, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.send(new ProducerRecord<>("plain", new byte[1])).get();
            say("produced");
        } catch (ExecutionException error) {
            say("refused", error.getCause().getClass().getSimpleName());
        }
        Properties reading = new Properties();
        reading.putAll(settings);
        reading.putAll(Map.of("group.id", "new", "group.protocol", "consumer"));
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of("plain"));
            while (true) {
                consumer.poll(Duration.ofSeconds(1));
            }
        } catch (UnsupportedVersionException error) {
            say("new protocol", error.getMessage());
        }
    }

    private static void refused(String what, KafkaFuture<?> asked) throws Exception {
        try {
            say(what, asked.get());
        } catch (ExecutionException error) {
            say(what, error.getCause().getClass().getSimpleName());
        }
    }

    private static void say(Object... words) {
        List<String> shown = new ArrayList<>();
        for (Object word : words) {
            shown.add(String.valueOf(word));
        }
        System.out.println(String.join("\t", shown));
    }
}
