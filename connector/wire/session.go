package wire

// Append implements Message.
func (m *HelloRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u16(m.MinVersion)
	w.u16(m.MaxVersion)
	w.u64(m.Features)
	w.u64(m.StagingBytes)
	w.u64(m.SlotBytes)
	w.text(m.Client)
	w.texts(len(m.Tenants), func(i int) string { return m.Tenants[i].Name })
	w.texts(len(m.Tenants), func(i int) string { return m.Tenants[i].Token })
	return w.b
}

// Decode implements Message.
func (m *HelloRequest) Decode(body []byte) error {
	r := reader{message: "hello request", body: body}
	m.MinVersion = r.u16("min version")
	m.MaxVersion = r.u16("max version")
	m.Features = r.u64("features")
	m.StagingBytes = r.u64("staging bytes")
	m.SlotBytes = r.u64("slot bytes")
	m.Client = r.text("client", MaxName)
	names := r.texts("tenant names", MaxTenants, MaxName)
	tokens := r.texts("tenant tokens", MaxTenants, MaxToken)
	r.same("tenant tokens", len(tokens), len(names))
	if err := r.end(); err != nil {
		return err
	}
	m.Tenants = nil
	for i, name := range names {
		m.Tenants = append(m.Tenants, TenantName{Name: name, Token: tokens[i]})
	}
	return nil
}

// Append implements Message.
func (m *HelloReply) Append(b []byte) []byte {
	w := begin(b)
	w.u16(m.Version)
	w.u64(m.Features)
	w.u64(m.Connection)
	w.u64(m.BootEpoch)
	w.u64(m.ArenaBytes)
	w.u64(m.SlotBytes)
	w.u64(m.StagingBytes)
	w.u32(m.MaxFrame)
	w.u32(m.MaxInFlight)
	w.text(m.Server)
	w.count(len(m.Tenants))
	for _, t := range m.Tenants {
		w.u32(t.ID)
	}
	w.align(8)
	w.texts(len(m.Tenants), func(i int) string { return string(m.Tenants[i].Salt) })
	return w.b
}

// Decode implements Message.
func (m *HelloReply) Decode(body []byte) error {
	r := reader{message: "hello reply", body: body}
	m.Version = r.u16("version")
	m.Features = r.u64("features")
	m.Connection = r.u64("connection")
	m.BootEpoch = r.u64("boot epoch")
	m.ArenaBytes = r.u64("arena bytes")
	m.SlotBytes = r.u64("slot bytes")
	m.StagingBytes = r.u64("staging bytes")
	m.MaxFrame = r.u32("max frame")
	m.MaxInFlight = r.u32("max in flight")
	m.Server = r.text("server", MaxName)
	ids := get[uint32](&r, "tenant ids", MaxTenants)
	salts := r.texts("tenant salts", MaxTenants, MaxSalt)
	r.same("tenant salts", len(salts), len(ids))
	if err := r.end(); err != nil {
		return err
	}
	m.Tenants = nil
	for i, id := range ids {
		m.Tenants = append(m.Tenants, TenantGrant{ID: id, Salt: []byte(salts[i])})
	}
	return nil
}

// Append implements Message.
func (m *ProfileRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.BlockTokens)
	w.u32(m.ProbeTokens)
	w.u64(m.SegmentBytes)
	w.u64(m.CheckpointBytes)
	w.u64(m.MemoryBytes)
	put(&w, m.Identity)
	w.text(m.Connector)
	w.text(m.Engine)
	w.memory(m.Memory)
	return w.b
}

// Decode implements Message.
func (m *ProfileRequest) Decode(body []byte) error {
	r := reader{message: "profile request", body: body}
	m.BlockTokens = r.u32("block tokens")
	m.ProbeTokens = r.u32("probe tokens")
	m.SegmentBytes = r.u64("segment bytes")
	m.CheckpointBytes = r.u64("checkpoint bytes")
	m.MemoryBytes = r.u64("memory bytes")
	m.Identity = get[uint8](&r, "identity", MaxIdentity)
	m.Connector = r.text("connector", MaxName)
	m.Engine = r.text("engine", MaxName)
	m.Memory = r.memory()
	return r.end()
}

// memory writes the layers as eight columns, one per field.
func (w *writer) memory(layers []MemoryLayer) {
	w.count(len(layers))
	for i := range layers {
		w.u32(layers[i].Layer)
	}
	for f := range memoryFields {
		w.count(len(layers))
		for i := range layers {
			w.u64(*layers[i].field(f))
		}
	}
	w.align(8)
}

func (r *reader) memory() []MemoryLayer {
	numbers := get[uint32](r, "memory layer", MaxMemoryLayers)
	var layers []MemoryLayer
	if len(numbers) > 0 {
		layers = make([]MemoryLayer, len(numbers))
	}
	for i, n := range numbers {
		layers[i].Layer = n
	}
	for f, name := range memoryFields {
		column := get[uint64](r, name, MaxMemoryLayers)
		r.same(name, len(column), len(layers))
		if r.err != nil {
			return nil
		}
		for i, v := range column {
			*layers[i].field(f) = v
		}
	}
	return layers
}

// memoryFields names the columns after the layer numbers, in order.
var memoryFields = [...]string{
	"memory k base", "memory v base", "memory block stride",
	"memory k token stride", "memory k head stride",
	"memory v token stride", "memory v head stride",
}

func (l *MemoryLayer) field(i int) *uint64 {
	return [...]*uint64{
		&l.KBase, &l.VBase, &l.BlockStride,
		&l.KTokenStride, &l.KHeadStride, &l.VTokenStride, &l.VHeadStride,
	}[i]
}

// Append implements Message.
func (m *ProfileReply) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Memory)
	w.hash(&m.Fingerprint)
	return w.b
}

// Decode implements Message.
func (m *ProfileReply) Decode(body []byte) error {
	r := reader{message: "profile reply", body: body}
	m.Profile = r.u32("profile")
	m.Memory = r.u32("memory")
	m.Fingerprint = r.hash("fingerprint")
	return r.end()
}

// Append implements Message.
func (m *CancelRequest) Append(b []byte) []byte { return appendIDs(b, m.Requests) }

// Decode implements Message.
func (m *CancelRequest) Decode(body []byte) (err error) {
	m.Requests, err = decodeIDs("cancel request", "requests", body)
	return err
}

// Append implements Message.
func (m *CancelReply) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Outcomes)
	return w.b
}

// Decode implements Message.
func (m *CancelReply) Decode(body []byte) error {
	r := reader{message: "cancel reply", body: body}
	m.Outcomes = get[uint8](&r, "outcomes", MaxIDs)
	return r.end()
}

// Append implements Message.
func (m *ReleaseRequest) Append(b []byte) []byte { return appendIDs(b, m.Leases) }

// Decode implements Message.
func (m *ReleaseRequest) Decode(body []byte) (err error) {
	m.Leases, err = decodeIDs("release request", "leases", body)
	return err
}

// Append implements Message.
func (m *AbortRequest) Append(b []byte) []byte { return appendIDs(b, m.Reservations) }

// Decode implements Message.
func (m *AbortRequest) Decode(body []byte) (err error) {
	m.Reservations, err = decodeIDs("abort request", "reservations", body)
	return err
}

// Append implements Message.
func (m *CodesReply) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Codes)
	return w.b
}

// Decode implements Message.
func (m *CodesReply) Decode(body []byte) error {
	r := reader{message: "codes reply", body: body}
	m.Codes = get[uint16](&r, "codes", MaxIDs)
	return r.end()
}

func appendIDs(b []byte, ids []uint64) []byte {
	w := begin(b)
	put(&w, ids)
	return w.b
}

func decodeIDs(message, field string, body []byte) ([]uint64, error) {
	r := reader{message: message, body: body}
	ids := get[uint64](&r, field, MaxIDs)
	return ids, r.end()
}

// Append implements Message.
func (m *StatsRequest) Append(b []byte) []byte { return b }

// Decode implements Message.
func (m *StatsRequest) Decode(body []byte) error {
	r := reader{message: "stats request", body: body}
	return r.end()
}

// Append implements Message.
func (m *StatsReply) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Values)
	w.texts(len(m.Names), func(i int) string { return m.Names[i] })
	return w.b
}

// Decode implements Message.
func (m *StatsReply) Decode(body []byte) error {
	r := reader{message: "stats reply", body: body}
	m.Values = get[float64](&r, "values", MaxStats)
	m.Names = r.texts("names", MaxStats, MaxName)
	r.same("names", len(m.Names), len(m.Values))
	return r.end()
}
