package schema

// Wire is the protocol.
var Wire = Protocol{
	Constants:  constants,
	Enums:      enums,
	Structs:    structs,
	Messages:   messages(),
	Operations: operations,
}

// Numbers are never reused.
var operations = []Operation{
	{Number: 1, Name: "hello", Request: "HelloRequest", Reply: "HelloReply", ReplyDescriptors: "three descriptors"},
	{Number: 2, Name: "profile", Request: "ProfileRequest", Reply: "ProfileReply", RequestDescriptors: "at most one descriptor"},
	{Number: 3, Name: "match", Request: "MatchRequest", Reply: "MatchReply", Tenant: true},
	{Number: 4, Name: "acquire", Request: "AcquireRequest", Reply: "AcquireReply", Tenant: true},
	{Number: 5, Name: "reserve", Request: "ReserveRequest", Reply: "ReserveReply", Tenant: true},
	{Number: 6, Name: "commit", Request: "CommitRequest", Reply: "CommitReply"},
	{Number: 7, Name: "abort", Request: "AbortRequest", Reply: "CodesReply", Stopping: true},
	{Number: 8, Name: "compose", Request: "ComposeRequest", Reply: "ComposeReply", Tenant: true},
	{Number: 9, Name: "rotate", Request: "RotateRequest", Reply: "RotateReply", Tenant: true},
	{Number: 10, Name: "assemble", Request: "AssembleRequest", Reply: "RotateReply", Tenant: true},
	{Number: 11, Name: "save", Request: "SaveRequest", Reply: "ReserveReply", Tenant: true},
	{Number: 12, Name: "load", Request: "LoadRequest", Reply: "LoadReply", Tenant: true},
	{Number: 13, Name: "cancel", Request: "CancelRequest", Reply: "CancelReply", Stopping: true},
	{Number: 14, Name: "release", Request: "ReleaseRequest", Reply: "CodesReply", Stopping: true},
	{Number: 15, Name: "stats", Request: "StatsRequest", Reply: "StatsReply", Stopping: true},
	{Number: 16, Name: "advise", Request: "AdviseRequest", Reply: "AdviseReply", Tenant: true},
	{Number: 17, Name: "append", Request: "AppendRequest", Reply: "AppendReply", Tenant: true},
	{Number: 18, Name: "accept", Request: "AcceptRequest", Reply: "AppendReply", Tenant: true},
	{Number: 19, Name: "replay", Request: "ReplayRequest", Reply: "ComposeReply", Tenant: true},
	{Number: 20, Name: "report", Request: "ReportRequest", Reply: "ReportReply", Tenant: true},
	{Number: 21, Name: "attach-device", Request: "AttachDeviceRequest", Reply: "AttachDeviceReply", ReplyDescriptors: "descriptors"},
	{Number: 22, Name: "register-device", Request: "RegisterDeviceRequest", Reply: "RegisterDeviceReply", RequestDescriptors: "descriptors"},
	{Number: 23, Name: "acquire-device", Request: "AcquireDeviceRequest", Reply: "AcquireReply", Tenant: true},
	{Number: 24, Name: "order", Request: "OrderRequest", Reply: "CodesReply", Stopping: true},
	{Number: 25, Name: "load-device", Request: "LoadDeviceRequest", Reply: "LoadReply", Tenant: true},
	{Number: 26, Name: "plan", Request: "PlanRequest", Reply: "PlanReply", Tenant: true},
	{Number: 27, Name: "watch", Request: "WatchRequest", Reply: "WatchReply", Tenant: true},
	{Number: 28, Name: "served", Request: "ServedRequest", Reply: "ServedReply", Tenant: true},
}
