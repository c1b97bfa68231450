package wire

import "strconv"

// codeNames and levelNames are indexed by number; docs/protocol.md lists the same.
var codeNames = [...]string{
	OK: "ok", Miss: "miss", Invalid: "invalid", Busy: "busy", Full: "full", Gone: "gone",
	Corrupt: "corrupt", Unavailable: "unavailable", Exists: "exists", Denied: "denied",
	Stale: "stale", Unsupported: "unsupported", Canceled: "canceled", Late: "late", Quota: "quota",
}

var levelNames = [...]string{LevelDefault: "default", LevelMemory: "memory", LevelLogged: "logged", LevelSynced: "synced"}

// String returns the name of l, or its number when it has none.
func (l Level) String() string {
	if l.Known() {
		return levelNames[l]
	}
	return "level " + strconv.Itoa(int(l))
}

// Known reports whether l is a level of this version.
func (l Level) Known() bool { return int(l) < len(levelNames) }

// String returns the name of c, or its number when it has none.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return "code " + strconv.Itoa(int(c))
}
