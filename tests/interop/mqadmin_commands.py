"""All commands of mqadmin 5.5.0, and why some of them do not work.

``test_mqadmin.py`` compares the names with what mqadmin prints, and tries each refusal.
``docs/compatibility.md`` is made from this, and says that a command works only where a test shows
it (``shown.py``).
"""

from __future__ import annotations

from typing import Final

from skylark.wire.codes import RequestCode

#: Those that do something.
SERVED: Final = (
    "updateTopic", "updateTopicList", "deleteTopic", "updateSubGroup", "updateSubGroupList",
    "setConsumeMode", "deleteSubGroup", "updateBrokerConfig", "updateTopicPerm", "topicRoute",
    "topicStatus", "topicClusterList", "brokerStatus", "queryMsgById", "queryMsgByKey",
    "queryMsgByUniqueKey", "queryMsgByOffset", "queryMsgTraceById", "printMsg", "printMsgByQueue",
    "sendMsgStatus", "brokerConsumeStats", "producerConnection", "consumerConnection",
    "consumerProgress", "consumerStatus", "cloneGroupOffset", "producer", "clusterList",
    "topicList", "updateKvConfig", "deleteKvConfig", "wipeWritePerm", "addWritePerm",
    "resetOffsetByTime", "skipAccumulatedMessage", "updateOrderConf", "cleanExpiredCQ",
    "deleteExpiredCommitLog", "cleanUnusedTopic", "statsAll", "allocateMQ", "checkMsgSendRT",
    "getNamesrvConfig", "updateNamesrvConfig", "getBrokerConfig", "getConsumerConfig", "queryCq",
    "sendMessage", "consumeMessage", "exportMetadata", "exportConfigs", "exportMetrics",
    "haStatus", "getColdDataFlowCtrInfo", "updateColdDataFlowCtrGroupConfig",
    "removeColdDataFlowCtrGroupConfig", "setCommitLogReadAheadMode", "resetMasterFlushOffset",
    "checkRocksdbCqWriteProgress", "rocksDBConfigToJson",
)  # fmt: skip

#: Command -> the request that the broker refuses; the reason stands with the refusal.
REFUSED_BY_CODE: Final = {
    "createUser": RequestCode.AUTH_CREATE_USER,
    "updateUser": RequestCode.AUTH_UPDATE_USER,
    "deleteUser": RequestCode.AUTH_DELETE_USER,
    "getUser": RequestCode.AUTH_GET_USER,
    "listUser": RequestCode.AUTH_LIST_USER,
    "copyUser": RequestCode.AUTH_LIST_USER,
    "createAcl": RequestCode.AUTH_CREATE_ACL,
    "updateAcl": RequestCode.AUTH_UPDATE_ACL,
    "deleteAcl": RequestCode.AUTH_DELETE_ACL,
    "getAcl": RequestCode.AUTH_GET_ACL,
    "listAcl": RequestCode.AUTH_LIST_ACL,
    "copyAcl": RequestCode.AUTH_LIST_ACL,
    "exportPopRecord": RequestCode.POP_ROLLBACK,
    "addBroker": RequestCode.ADD_BROKER,
    "removeBroker": RequestCode.REMOVE_BROKER,
    "getBrokerEpoch": RequestCode.GET_BROKER_EPOCH_CACHE,
    "switchTimerEngine": RequestCode.SWITCH_TIMER_ENGINE,
    "updateStaticTopic": RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
    "getBrokerLiteInfo": RequestCode.GET_BROKER_LITE_INFO,
    "getParentTopicInfo": RequestCode.GET_PARENT_TOPIC_INFO,
    "getLiteTopicInfo": RequestCode.GET_LITE_TOPIC_INFO,
    "getLiteClientInfo": RequestCode.GET_LITE_CLIENT_INFO,
    "getLiteGroupInfo": RequestCode.GET_LITE_GROUP_INFO,
    "triggerLiteDispatch": RequestCode.TRIGGER_LITE_DISPATCH,
}

_CONTROLLER: Final = "asks a controller, and there is none yet"

#: Command -> why there is nothing that could answer it.
WITHOUT_SERVER: Final = {
    "getSyncStateSet": _CONTROLLER,
    "getControllerMetaData": _CONTROLLER,
    "getControllerConfig": _CONTROLLER,
    "updateControllerConfig": _CONTROLLER,
    "electMaster": _CONTROLLER,
    "cleanBrokerMetadata": _CONTROLLER,
    "remappingStaticTopic": "there are no static topics that could be moved",
    "exportMetadataInRocksDB": "reads RocksDB files, and there are none",
    "dumpCompactionLog": "reads compacted logs, and there are none yet",
    "startMonitoring": "runs until it is stopped, and no test has done it yet",
    "clusterRT": "runs until it is stopped, and no test has done it yet",
}

NAMES: Final = (*SERVED, *REFUSED_BY_CODE, *WITHOUT_SERVER)
