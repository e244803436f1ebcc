"""Settings of a Java broker that have no effect here, so that its files load and its tools work.

A properties file written for ``mqbroker`` loads unchanged, and request 26 prints every key that a
real 5.5.0 prints, with the default it has there (thread counts as on a machine with two
processors). :data:`IGNORED` is the one table of keys that nothing here reads
(:mod:`skylark.core.ignored_keys`).

Ignoring is harmless for most of them. For the rest it is not: an operator who switches on access
control must not get a broker without it. Such keys may be written, but only with the value of
:data:`REFUSED`; any other stops the start with the sentence given there. Keys of the store are
refused the same way in :mod:`skylark.store.config`.

Code that begins to use a setting declares it in its config section and takes it out of the table.
Until the second is done, the section of the store wins.

Counterpart of what is left of Java's ``BrokerConfig``, ``MessageStoreConfig``,
``NettyServerConfig``, ``NettyClientConfig`` and ``AuthConfig``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from skylark.core.config import Config, Scalar, format_value, settings
from skylark.core.ignored_keys import ignored_section
from skylark.store.config import StoreConfig

#: Reason -> ``key=default`` of every setting that is ignored for this reason.
IGNORED: Final[dict[str, str]] = {
    "one event loop answers all requests, there are no thread pools": """
        ackMessageThreadPoolNums=16 adminBrokerThreadPoolNums=16 clientManageThreadPoolNums=32
        consumerManageThreadPoolNums=32 endTransactionThreadPoolNums=12 heartbeatThreadPoolNums=2
        litePullMessageThreadPoolNums=20 loadBalanceProcessorThreadPoolNums=32
        processReplyMessageThreadPoolNums=20 pullMessageThreadPoolNums=20
        putMessageFutureThreadPoolNums=2 queryMessageThreadPoolNums=10 recoverThreadPoolNums=32
        sendMessageThreadPoolNums=2 recoverConcurrently=false asyncSendEnable=true
        maxAsyncPutMessageRequests=5000 putMessageTimeout=8000
        """,
    "requests wait in the kernel, held back by back-pressure, not in queues of ours": """
        ackThreadPoolQueueCapacity=100000 adminBrokerThreadPoolQueueCapacity=10000
        clientManagerThreadPoolQueueCapacity=1000000
        consumerManagerThreadPoolQueueCapacity=1000000 endTransactionPoolQueueCapacity=100000
        heartbeatThreadPoolQueueCapacity=50000 litePullThreadPoolQueueCapacity=100000
        loadBalanceThreadPoolQueueCapacity=100000 pullThreadPoolQueueCapacity=100000
        putThreadPoolQueueCapacity=10000 queryThreadPoolQueueCapacity=20000
        replyThreadPoolQueueCapacity=10000 sendThreadPoolQueueCapacity=10000
        enableNetWorkFlowControl=false highSpeedMode=false
        """,
    "an option of Netty": """
        channelNotActiveInterval=60000 clientAsyncSemaphoreValue=65535
        clientCallbackExecutorThreads=2 clientChannelMaxIdleTimeSeconds=120
        clientCloseSocketIfTimeout=true clientOnewaySemaphoreValue=65535
        clientPooledByteBufAllocatorEnable=false clientSocketRcvBufSize=0 clientSocketSndBufSize=0
        clientWorkerThreads=4 connectTimeoutMillis=3000 disableCallbackExecutor=false
        disableNettyWorkerGroup=false enableReconnectForGoAway=true isScanAvailableNameSrv=true
        maxReconnectIntervalTimeSeconds=60 serverAsyncSemaphoreValue=64
        serverCallbackExecutorThreads=0 serverNettyWorkerGroupEnable=true
        serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=true
        serverSelectorThreads=3 serverSocketBacklog=1024 serverSocketRcvBufSize=0
        serverSocketSndBufSize=0 serverWorkerThreads=8 useEpollNativeSelector=false
        writeBufferHighWaterMark=0 writeBufferLowWaterMark=0 enableFastChannelEventProcess=false
        printChannelGroups=false printChannelGroupsMinNum=5
        """,
    "every shutdown is orderly: what is in hand is answered, then clients are told to go away": """
        enableShutdownGracefully=false shutdownWaitTimeSeconds=30
        """,
    "a proxy between broker and name server is not supported": "socksProxyConfig={}",
    "TLS is not built yet": "useTLS=false",
    "access control is not built yet": """
        aclEnable=false authenticationEnabled=false authorizationEnabled=false
        migrateAuthFromV1Enabled=false
        """,
    "acks and check-points never block a thread": "appendAckAsync=false appendCkAsync=false",
    "a check-point that leaves memory is written with its acks": "enablePopBatchAck=false",
    "the revive reads what arrives, and sleeps without check-points": """
        reviveMaxSlow=3 reviveScanTime=10000
        """,
    "acks without a check-point hold up nothing": """
        enableSkipLongAwaitingAck=false reviveAckWaitMs=180000
        """,
    "the log does not have a line per message": "enablePopLog=false",
    "metrics of POP are always counted": "enablePopMetrics=true",
    "the lag of pop groups needs no notice": "enableNotifyBeforePopCalculateLag=true",
    "the state of POP is kept in the revive topics; RocksDB is not supported": """
        popConsumerFSServiceInit=true popConsumerKVServiceEnable=false
        popConsumerKVServiceInit=false popConsumerKVServiceLog=false popReviveConcurrency=32
        popReviveMaxAttemptTimes=16 popReviveMaxReturnSizePerRead=16384
        popReviveSkipIfGroupAbsent=true
        """,
    "waiting pops are indexed exactly; nothing expires": """
        popPollingMapExpireTimeSeconds=600 popPollingMapSize=100000
        """,
    "light message queues and lite topics are not supported": """
        enableLiteEventMode=true enableLitePopLog=false enableLmqQuota=false enableLmqStats=false
        liteEventCheckInterval=10000 liteEventFullDispatchDelayTime=10000
        liteEventFullDispatchDelayTimeForWildcardGroup=10000 liteLagCountMetricsEnable=false
        liteLagLatencyCollectEnable=false liteLagLatencyMetricsEnable=false liteLagLatencyTopK=50
        liteSubscriptionCheckInterval=120000 liteSubscriptionCheckTimeoutMills=180000
        liteTtlCheckInterval=120000 maxClientEventCount=100 maxLiteSubscriptionCount=100000
        maxLmqConsumeQueueNum=20000 minLiteTTl=900000
        """,
    "slaves that act as master, and brokers run by a controller, are not supported": """
        allAckInSyncStateSet=false enableAutoInSyncReplicas=false forwardTimeout=3000
        haMaxTimeSlaveNotCatchup=15000 maxSlaveResendLength=268435456 minInSyncReplicas=1
        replicasPerDiskPartition=1 syncFromLastFile=false syncMasterFlushOffsetWhenStartup=false
        totalReplicas=1
        asyncLearner=false brokerElectionPriority=2147483647 brokerHeartbeatInterval=1000
        brokerNotActiveTimeoutMillis=10000 checkSyncStateSetPeriod=5000
        compatibleWithOldNameSrv=true controllerAddr= controllerHeartBeatTimeoutMills=10000
        dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId enableRemoteEscape=false
        enableSlaveActingMaster=false fetchControllerAddrByDnsLookup=false
        maxChecksumRange=1073741824 sendHeartbeatTimeoutMillis=1000 skipPreOnline=false
        storePathBrokerIdentity
        storePathDLedgerCommitLog storePathEpochFile syncBrokerMemberGroupPeriod=1000
        syncBrokerMetadataPeriod=5000 syncControllerMetadataPeriod=10000
        """,
    "a broker is a process of its own, or shares one by `skylark up`": """
        isBrokerContainer=false isInBrokerContainer=false isolateLogEnable=false
        """,
    "name servers are given by their addresses": """
        fetchNameSrvAddrByDnsLookup=false fetchNamesrvAddrByAddressServer=false
        fetchNamesrvAddrInterval=10000 updateNameServerAddrPeriod=120000
        """,
    "the whole table is registered in one request": """
        enableSplitRegistration=false splitRegistrationSize=800 cleanOfflineBrokerInterval=30000
        """,
    "RocksDB is not supported": """
        bottomMostCompressionTypeForConsumeQueueStore=zstd cleanRocksDBDirtyCQIntervalMin=60
        combineAssignOffsetCQType=default combineCQEnableCheckSelf=false
        combineCQLoadingCQTypes=default;defaultRocksDB combineCQMaxExtraSearchCommitLogFiles=3
        combineCQPreferCQType=default combineCQUseRocksdbForLmq=false configManagerVersion=v1
        enableRocksDBLog=false flushConsumerOffsetHistoryInterval=60000 indexFileReadEnable=true
        indexFileWriteEnable=true iteratorWhenUseRocksdbConsumeQueue=true
        maxRocksDBIndexQueryDays=7 memTableFlushIntervalMs=3600000
        persistConsumerOffsetIncrementally=false realTimePersistRocksDBConfig=true
        rocksdbCompressionType=lz4 rocksdbFlushWalFrequency=1024
        rocksdbWalFileRollingThreshold=1073741824 statRocksDBCQIntervalSec=10
        timerRocksDBEnable=false timerRocksDBPrecisionMs=1000 timerRocksDBRollIntervalHours=1
        timerRocksDBRollMaxTps=8000.0 timerRocksDBRollRangeHours=2 timerRocksDBStopScan=false
        timerRocksDBTimeExpiredMaxTps=200000.0 timerRecallToTimeWheelEnable=true
        timerRecallToTimelineEnable=true timerReputServiceCorePoolSize=6
        timerReputServiceMaxPoolSize=6 timerReputServiceQueueCapacity=10000
        transRocksDBEnable=false transWriteOriginTransHalfEnable=true
        transactionCheckRocksdbCoreThreads=2 transactionCheckRocksdbMaxThreads=5
        transactionCheckRocksdbQueueCapacity=2000 useSeparateStorePathForRocksdbCQ=false
        useSingleRocksDBForAllConfigs=false
        """,
    "how the Java store locks, maps and dispatches": """
        batchDispatchRequestThreadPoolNums=16
        checkCommitLogOffsetOnRecover=false cleanSwapedMapInterval=300000
        commitLogForceSwapMapInterval=43200000 commitLogSwapMapInterval=3600000
        commitLogSwapMapReserveFileNum=100 correctLogicMinOffsetForceInterval=300000
        correctLogicMinOffsetSleepInterval=1 debugLockEnable=false disappearTimeAfterStart=-1
        diskFallRecorded=true dispatchCqCacheNum=4096 dispatchCqThreads=10
        dispatchFromSenderThread=false enableAcceleratedRecovery=false enableAsyncReput=true
        enableBatchPush=false enableBuildConsumeQueueConcurrently=false
        enableCleanExpiredOffset=false enableLogConsumeQueueRepeatedlyBuildWhenRecover=false
        enableRunningFlagsInFlush=false logicQueueForceSwapMapInterval=43200000
        logicQueueSwapMapInterval=3600000 logicQueueSwapMapReserveFileNum=20
        logicalDiskSpaceCleanForciblyThreshold=0.8 mappedFileSwapEnable=true
        maxBatchDeleteFilesNum=50 maxConsumeQueueScan=20000 maxRecoveryCommitlogFiles=30
        pullBatchMaxMessageCount=160 putConsumeQueueDataByFileChannel=true
        putMsgIndexHightWater=600000 recheckReputOffsetFromCq=false sampleCountThreshold=5000
        sampleSteps=32 searchBcqByCacheEnable=true sharedByteBufferNum=16
        spinLockCollisionRetreatOptimalDegree=1000 topicQueueLockNum=32 transferMsgByHeap=true
        useABSLock=false useReentrantLockWhenPutMessage=true writeWithoutMmap=false
        """,
    "delayed messages are delivered in order, and no delivery waits for another's put": """
        enableScheduleAsyncDeliver=false scheduleAsyncDeliverMaxPendingLimit=2000
        scheduleAsyncDeliverMaxResendNum2Blocked=3
        """,
    "all queues are written and synced together": "flushConsumeQueueLeastPages=2",
    "topics longer than 127 bytes always get records of version 2, all others never": """
        autoMessageVersionOnTopicLen=true
        """,
    "the longest name of a topic is part of the protocol": "maxTopicLength=127",
    "plug-ins are Java classes": "messageStorePlugIn=",
    "there is no compaction: topics with cleanup.policy=COMPACTION are refused": """
        compactionCqMappedFileSize=10485760 compactionMappedFileSize=104857600
        compactionScheduleInternal=900000 compactionThreadNum=6 enableCompaction=true
        maxOffsetMapSize=104857600
        """,
    "extended consume queues are not supported, and only they hold the bits of SQL92 filters": """
        bitMapLengthConsumeQueueExt=112 enableCalcFilterBitMap=false
        mappedFileSizeConsumeQueueExt=50331648
        """,
    "how the Java timer runs, and its checks of itself": """
        timerCheckMetricsWhen=05
        timerColdDataCheckIntervalMs=60000 timerEnableCheckMetrics=true timerEnableDisruptor=false
        timerGetMessageThreadNum=3 timerInterceptDelayLevel=false
        timerMetricSmallThreshold=1000000 timerProgressLogIntervalMs=10000
        timerPutMessageThreadNum=3 timerWarmEnable=false timerWheelSnapshotFlush=false
        timerWheelSnapshotIntervalMs=10000
        """,
    "old data is what is far from the end of the log, and limits on reading it are fixed": """
        coldCtrStrategyEnable=false coldDataScanEnable=false usePIDColdCtrStrategy=true
        """,
    "statistics are always kept, and dropped with their topic or group": """
        accountStatsEnable=true accountStatsPrintZeroValues=true autoDeleteUnusedStats=true
        commercialBaseCount=1 commercialSizePerMsg=4096 enableDetailStat=true
        enableScheduleMessageStats=true estimateAccumulation=true
        """,
    "metrics are served to Prometheus, all of them": """
        enableConnectionMetrics=true enableLagAndDlqMetrics=true enableMessageStoreMetrics=true
        enableRemotingMetrics=true enableRequestMetrics=true enableStatsMetrics=true
        enableTransactionMetrics=true metricGrpcExporterIntervalInMills=60000
        metricGrpcExporterTimeOutInMills=3000 metricLoggingExporterIntervalInMills=10000
        metricsExportBatchMaxDataPoints=1000 metricsGrpcExporterHeader=
        metricsGrpcExporterTarget= metricsInDelta=false metricsOtelCardinalityLimit=50000
        """,
    "subscriptions come with heartbeats": "useStaticSubscription=false",
}

_NO_ACCESS_CONTROL: Final = (
    "access control is not built yet; until then bind to loopback, or let a firewall decide who"
    " reaches the broker"
)
_NO_POP_ROCKSDB: Final = (
    "RocksDB is not supported; the state of POP is kept in the revive topics, as by Java's default"
)
_NO_ROCKSDB: Final = "RocksDB is not supported; the files of the default store hold the same data"
_NO_CONTROLLER: Final = "brokers do not change their roles by themselves; use masters with slaves"
_NAMES: Final = "write the addresses of the name servers into namesrvAddr"
_NO_COLD_CONTROL: Final = "limits on reading old data do not adapt; set cgColdReadThreshold"

#: Key -> the only value that is accepted, and why no other is.
REFUSED: Final[dict[str, tuple[Scalar, str]]] = {
    "aclEnable": (False, _NO_ACCESS_CONTROL),
    "authenticationEnabled": (False, _NO_ACCESS_CONTROL),
    "authorizationEnabled": (False, _NO_ACCESS_CONTROL),
    "migrateAuthFromV1Enabled": (False, _NO_ACCESS_CONTROL),
    "useTLS": (False, "TLS is not built yet"),
    "socksProxyConfig": ("{}", "a proxy between broker and name server is not supported"),
    "popConsumerKVServiceEnable": (False, _NO_POP_ROCKSDB),
    "popConsumerKVServiceInit": (False, _NO_POP_ROCKSDB),
    "enableSlaveActingMaster": (False, _NO_CONTROLLER),
    "enableRemoteEscape": (False, _NO_CONTROLLER),
    "controllerAddr": ("", _NO_CONTROLLER),
    "isBrokerContainer": (False, "containers of brokers are not supported; see `skylark up`"),
    "isInBrokerContainer": (False, "containers of brokers are not supported; see `skylark up`"),
    "fetchNameSrvAddrByDnsLookup": (False, _NAMES),
    "fetchNamesrvAddrByAddressServer": (False, _NAMES),
    "configManagerVersion": ("v1", _NO_ROCKSDB),
    "useSingleRocksDBForAllConfigs": (False, _NO_ROCKSDB),
    "timerRocksDBEnable": (False, _NO_ROCKSDB),
    "transRocksDBEnable": (False, _NO_ROCKSDB),
    "messageStorePlugIn": ("", "plug-ins are Java classes, which cannot be loaded here"),
    "timerInterceptDelayLevel": (False, "delay levels have queues of their own, not the timer"),
    "coldCtrStrategyEnable": (False, _NO_COLD_CONTROL),
    "useStaticSubscription": (
        False,
        "subscriptions in the configuration of a group are not enforced",
    ),
}


class _Ignored(Config, frozen=True, kw_only=True):
    """Base of the section: what is refused."""

    def check(self) -> Iterable[str]:
        for key, (accepted, reason) in REFUSED.items():
            value = getattr(self, key, accepted)
            if value != accepted:
                yield f"{key}={format_value(value)}: {reason}"


if TYPE_CHECKING:

    class IgnoredSettings(_Ignored, frozen=True, kw_only=True):
        """Keys of a Java broker that are accepted, shown and without effect."""

else:
    IgnoredSettings = ignored_section(
        IGNORED,
        module=__name__,
        base=_Ignored,
        without={info.java for info in settings(StoreConfig)},
    )
