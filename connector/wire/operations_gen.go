// Code generated from connector/wire/schema by wiregen; DO NOT EDIT.

package wire

// Op is an operation code.
type Op uint16

// The operations. Numbers are never reused.
const (
	OpHello          Op = 1
	OpProfile        Op = 2
	OpMatch          Op = 3
	OpAcquire        Op = 4
	OpReserve        Op = 5
	OpCommit         Op = 6
	OpAbort          Op = 7
	OpCompose        Op = 8
	OpRotate         Op = 9
	OpAssemble       Op = 10
	OpSave           Op = 11
	OpLoad           Op = 12
	OpCancel         Op = 13
	OpRelease        Op = 14
	OpStats          Op = 15
	OpAdvise         Op = 16
	OpAppend         Op = 17
	OpAccept         Op = 18
	OpReplay         Op = 19
	OpReport         Op = 20
	OpAttachDevice   Op = 21
	OpRegisterDevice Op = 22
	OpAcquireDevice  Op = 23
	OpOrder          Op = 24
	OpLoadDevice     Op = 25
	OpPlan           Op = 26
	OpWatch          Op = 27
	OpServed         Op = 28
)

// OpCount is one more than the highest op: an array of that length, indexed by
// ops that are Known, cannot be indexed out of range.
const OpCount = 29

// operations is indexed by Op; an op without a name does not exist.
var operations = [OpCount]operation{
	OpHello:          {"hello", Rules{}, [2]func() Message{message[HelloRequest], message[HelloReply]}},
	OpProfile:        {"profile", Rules{Descriptors: true}, [2]func() Message{message[ProfileRequest], message[ProfileReply]}},
	OpMatch:          {"match", Rules{Tenant: true}, [2]func() Message{message[MatchRequest], message[MatchReply]}},
	OpAcquire:        {"acquire", Rules{Tenant: true}, [2]func() Message{message[AcquireRequest], message[AcquireReply]}},
	OpReserve:        {"reserve", Rules{Tenant: true}, [2]func() Message{message[ReserveRequest], message[ReserveReply]}},
	OpCommit:         {"commit", Rules{}, [2]func() Message{message[CommitRequest], message[CommitReply]}},
	OpAbort:          {"abort", Rules{WhileStopping: true}, [2]func() Message{message[AbortRequest], message[CodesReply]}},
	OpCompose:        {"compose", Rules{Tenant: true}, [2]func() Message{message[ComposeRequest], message[ComposeReply]}},
	OpRotate:         {"rotate", Rules{Tenant: true}, [2]func() Message{message[RotateRequest], message[RotateReply]}},
	OpAssemble:       {"assemble", Rules{Tenant: true}, [2]func() Message{message[AssembleRequest], message[RotateReply]}},
	OpSave:           {"save", Rules{Tenant: true}, [2]func() Message{message[SaveRequest], message[ReserveReply]}},
	OpLoad:           {"load", Rules{Tenant: true}, [2]func() Message{message[LoadRequest], message[LoadReply]}},
	OpCancel:         {"cancel", Rules{WhileStopping: true}, [2]func() Message{message[CancelRequest], message[CancelReply]}},
	OpRelease:        {"release", Rules{WhileStopping: true}, [2]func() Message{message[ReleaseRequest], message[CodesReply]}},
	OpStats:          {"stats", Rules{WhileStopping: true}, [2]func() Message{message[StatsRequest], message[StatsReply]}},
	OpAdvise:         {"advise", Rules{Tenant: true}, [2]func() Message{message[AdviseRequest], message[AdviseReply]}},
	OpAppend:         {"append", Rules{Tenant: true}, [2]func() Message{message[AppendRequest], message[AppendReply]}},
	OpAccept:         {"accept", Rules{Tenant: true}, [2]func() Message{message[AcceptRequest], message[AppendReply]}},
	OpReplay:         {"replay", Rules{Tenant: true}, [2]func() Message{message[ReplayRequest], message[ComposeReply]}},
	OpReport:         {"report", Rules{Tenant: true}, [2]func() Message{message[ReportRequest], message[ReportReply]}},
	OpAttachDevice:   {"attach-device", Rules{}, [2]func() Message{message[AttachDeviceRequest], message[AttachDeviceReply]}},
	OpRegisterDevice: {"register-device", Rules{Descriptors: true}, [2]func() Message{message[RegisterDeviceRequest], message[RegisterDeviceReply]}},
	OpAcquireDevice:  {"acquire-device", Rules{Tenant: true}, [2]func() Message{message[AcquireDeviceRequest], message[AcquireReply]}},
	OpOrder:          {"order", Rules{WhileStopping: true}, [2]func() Message{message[OrderRequest], message[CodesReply]}},
	OpLoadDevice:     {"load-device", Rules{Tenant: true}, [2]func() Message{message[LoadDeviceRequest], message[LoadReply]}},
	OpPlan:           {"plan", Rules{Tenant: true}, [2]func() Message{message[PlanRequest], message[PlanReply]}},
	OpWatch:          {"watch", Rules{Tenant: true}, [2]func() Message{message[WatchRequest], message[WatchReply]}},
	OpServed:         {"served", Rules{Tenant: true}, [2]func() Message{message[ServedRequest], message[ServedReply]}},
}
