package wire

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// ResourcesTo writes amounts.
func ResourcesTo(r peering.Resources) *ententev1.ResourceList {
	return &ententev1.ResourceList{Amounts: r.Strings()}
}

// ResourcesFrom reads amounts. A missing list is an empty one.
func ResourcesFrom(field string, m *ententev1.ResourceList) (peering.Resources, error) {
	r, err := peering.ParseResources(m.GetAmounts())
	if err != nil {
		return nil, invalid(field, "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	return r, nil
}

// MoneyTo writes an amount of money. It returns nil for no money.
func MoneyTo(m peering.Money) *ententev1.Money {
	if m.IsNone() {
		return nil
	}
	return &ententev1.Money{Currency: m.Currency, Amount: m.Amount.String()}
}

// MoneyFrom reads an amount of money. A missing amount means zero.
func MoneyFrom(field string, m *ententev1.Money) (peering.Money, error) {
	if m == nil {
		return peering.Money{}, nil
	}
	amount, err := peering.ParseDecimal(m.GetAmount())
	if err != nil {
		return peering.Money{}, invalid(field+".amount", "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	out := peering.Money{Currency: m.GetCurrency(), Amount: amount}
	// Without a currency a malformed amount would be read as no money.
	if out.IsNone() {
		return peering.Money{}, invalid(field+".currency", "want three capital letters")
	}
	if err := out.Check(); err != nil {
		return peering.Money{}, invalid(field+".currency", "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	return out, nil
}

// PriceListTo writes prices. It returns nil if everything is free of charge.
func PriceListTo(p peering.PriceList) *ententev1.PriceList {
	if len(p.PerHour) == 0 {
		return nil
	}
	m := &ententev1.PriceList{Currency: p.Currency, PerHour: make(map[string]string, len(p.PerHour))}
	for name, price := range p.PerHour {
		m.PerHour[name] = price.String()
	}
	return m
}

// PriceListFrom reads prices. A missing list means free of charge.
func PriceListFrom(field string, m *ententev1.PriceList) (peering.PriceList, error) {
	if n := len(m.GetPerHour()); n > peering.MaxResources {
		return peering.PriceList{}, invalid(field, "has %d prices, want at most %d", n, peering.MaxResources)
	}
	p := peering.PriceList{Currency: m.GetCurrency()}
	for name, text := range m.GetPerHour() {
		price, err := peering.ParseDecimal(text)
		if err != nil {
			return peering.PriceList{}, invalid(field+".per_hour", "%s", peering.Text(err.Error(), peering.MaxMessageLen))
		}
		if p.PerHour == nil {
			p.PerHour = make(map[string]peering.Decimal, len(m.GetPerHour()))
		}
		p.PerHour[name] = price
	}
	if err := p.Check(); err != nil {
		return peering.PriceList{}, invalid(field, "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	return p, nil
}

// limitRangeTo writes a limit range. It returns nil for an empty one.
func limitRangeTo(l peering.LimitRange) *ententev1.LimitRange {
	if l.IsZero() {
		return nil
	}
	return &ententev1.LimitRange{
		DefaultRequest: ResourcesTo(l.DefaultRequest), DefaultLimit: ResourcesTo(l.Default),
		Min: ResourcesTo(l.Min), Max: ResourcesTo(l.Max), PodMin: ResourcesTo(l.PodMin), PodMax: ResourcesTo(l.PodMax),
	}
}

// limitRangeFrom reads a limit range. A missing one is empty.
func limitRangeFrom(field string, m *ententev1.LimitRange) (peering.LimitRange, error) {
	var l peering.LimitRange
	var err error
	keep(&err, &l.DefaultRequest)(ResourcesFrom(field+".default_request", m.GetDefaultRequest()))
	keep(&err, &l.Default)(ResourcesFrom(field+".default_limit", m.GetDefaultLimit()))
	keep(&err, &l.Min)(ResourcesFrom(field+".min", m.GetMin()))
	keep(&err, &l.Max)(ResourcesFrom(field+".max", m.GetMax()))
	keep(&err, &l.PodMin)(ResourcesFrom(field+".pod_min", m.GetPodMin()))
	keep(&err, &l.PodMax)(ResourcesFrom(field+".pod_max", m.GetPodMax()))
	if err != nil {
		return peering.LimitRange{}, err
	}
	if err := l.Check(); err != nil {
		return peering.LimitRange{}, invalid(field, "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	return l.Clone(), nil
}

// AskTo writes an ask.
func AskTo(a peering.Ask) *ententev1.PeeringRequest {
	return &ententev1.PeeringRequest{
		RequestId:      a.RequestID,
		ContractId:     a.ContractID,
		Resources:      ResourcesTo(a.Resources),
		Duration:       writeDuration(a.Duration),
		Network:        a.Network,
		PriceCeiling:   MoneyTo(a.PriceCeiling),
		Pool:           a.Pool,
		NodeSelector:   a.NodeSelector,
		StorageClasses: a.StorageClasses,
		RuntimeClasses: a.RuntimeClasses,
	}
}

// AskFrom reads an ask.
func AskFrom(m *ententev1.PeeringRequest) (peering.Ask, error) {
	if m == nil {
		return peering.Ask{}, invalid("request", "is required")
	}
	if err := checkID("request.request_id", m.GetRequestId()); err != nil {
		return peering.Ask{}, err
	}
	if id := m.GetContractId(); id != "" {
		if err := peering.CheckContractID(id); err != nil {
			return peering.Ask{}, invalid("request.contract_id", "%s", err)
		}
	}
	a := peering.Ask{RequestID: m.GetRequestId(), ContractID: m.GetContractId(), Network: m.GetNetwork()}
	var err error
	keep(&err, &a.Resources)(ResourcesFrom("request.resources", m.GetResources()))
	keep(&err, &a.Duration)(readDuration("request.duration", m.GetDuration()))
	keep(&err, &a.PriceCeiling)(MoneyFrom("request.price_ceiling", m.GetPriceCeiling()))
	keep(&err, &a.Pool)(readPool("request.pool", m.GetPool()))
	keep(&err, &a.NodeSelector)(readLabels("request.node_selector", m.GetNodeSelector(), peering.CheckNodeSelector))
	keep(&err, &a.StorageClasses)(readNames("request.storage_classes", m.GetStorageClasses(), peering.MaxClasses))
	keep(&err, &a.RuntimeClasses)(readNames("request.runtime_classes", m.GetRuntimeClasses(), peering.MaxClasses))
	return read(a, err)
}

// AdvertisementTo writes an advertisement.
func AdvertisementTo(a peering.Advertisement) *ententev1.Advertisement {
	g := a.Grant
	m := &ententev1.Advertisement{
		ContractId:      a.ContractID,
		RequestId:       a.RequestID,
		Revision:        a.Revision,
		Resources:       ResourcesTo(g.Resources),
		Duration:        writeDuration(g.Duration),
		ValidUntil:      writeTime(a.ValidUntil),
		NodeLabels:      g.NodeLabels,
		Network:         g.Network,
		PodSecurity:     string(g.PodSecurity),
		Price:           PriceListTo(g.Price),
		Renewable:       g.Renewable,
		Notice:          writeDuration(g.Notice),
		Exposure:        g.Exposure,
		Pool:            g.Pool,
		NodeSelector:    g.NodeSelector,
		RuntimeClasses:  g.RuntimeClasses,
		StorageClasses:  g.StorageClasses,
		StatementPeriod: writeDuration(g.StatementPeriod),
		NeedsApproval:   a.NeedsApproval,
		NotAfter:        writeTime(a.NotAfter),
		LimitRange:      limitRangeTo(g.LimitRange),
	}
	if a.PreviousHash != (peering.Hash{}) {
		m.PreviousHash = a.PreviousHash[:]
	}
	if hourly, err := g.Price.Hourly(g.Resources); err == nil {
		m.HourlyPrice = MoneyTo(hourly)
	}
	return m
}

// AdvertisementFrom reads an advertisement. It can be signed, unless it is a preview, which has
// no contract ID and may need approval.
func AdvertisementFrom(m *ententev1.Advertisement, preview bool) (peering.Advertisement, error) {
	if err := peering.CheckContractID(m.GetContractId()); err != nil && !preview {
		return peering.Advertisement{}, invalid("advertisement.contract_id", "%s", err)
	}
	switch {
	case preview && m.GetContractId() != "":
		return peering.Advertisement{}, invalid("advertisement.contract_id", "want none in a preview")
	case !preview && m.GetNeedsApproval():
		return peering.Advertisement{}, invalid("advertisement.needs_approval", "an advertisement that waits for approval cannot be signed")
	}
	if err := checkID("advertisement.request_id", m.GetRequestId()); err != nil {
		return peering.Advertisement{}, err
	}
	if r := m.GetRevision(); r == 0 || r > peering.MaxRevision {
		return peering.Advertisement{}, invalid("advertisement.revision", "want 1 to %d", uint64(peering.MaxRevision))
	}
	a := peering.Advertisement{ContractID: m.GetContractId(), RequestID: m.GetRequestId(), Revision: m.GetRevision(), NeedsApproval: m.GetNeedsApproval()}
	switch n := len(m.GetPreviousHash()); {
	case n == len(a.PreviousHash):
		a.PreviousHash = peering.Hash(m.GetPreviousHash())
	case n != 0:
		return peering.Advertisement{}, invalid("advertisement.previous_hash", "want %d bytes or none", len(a.PreviousHash))
	}
	if (a.Revision == 1) != (a.PreviousHash == peering.Hash{}) {
		return peering.Advertisement{}, invalid("advertisement.previous_hash", "want none for the first revision and that of the one before for others")
	}
	var err error
	keep(&err, &a.ValidUntil)(readTime("advertisement.valid_until", m.GetValidUntil()))
	if err == nil && a.ValidUntil.IsZero() {
		err = invalid("advertisement.valid_until", "is required")
	}
	keep(&err, &a.NotAfter)(readTime("advertisement.not_after", m.GetNotAfter()))
	keep(&err, &a.Grant)(grantFrom(m))
	return read(a, err)
}

func grantFrom(m *ententev1.Advertisement) (peering.Grant, error) {
	g := peering.Grant{Clauses: peering.Clauses{Network: m.GetNetwork(), Renewable: m.GetRenewable()}}
	var err error
	keep(&err, &g.Resources)(ResourcesFrom("advertisement.resources", m.GetResources()))
	if err == nil && len(g.Resources) == 0 {
		err = invalid("advertisement.resources", "offers nothing")
	}
	keep(&err, &g.Duration)(wholeSeconds("advertisement.duration", m.GetDuration()))
	if err == nil && g.Duration == 0 {
		err = invalid("advertisement.duration", "is required")
	}
	keep(&err, &g.Notice)(wholeSeconds("advertisement.notice", m.GetNotice()))
	keep(&err, &g.StatementPeriod)(wholeSeconds("advertisement.statement_period", m.GetStatementPeriod()))
	keep(&err, &g.NodeLabels)(readLabels("advertisement.node_labels", m.GetNodeLabels(), peering.CheckNodeLabels))
	keep(&err, &g.Pool)(readPool("advertisement.pool", m.GetPool()))
	keep(&err, &g.NodeSelector)(readLabels("advertisement.node_selector", m.GetNodeSelector(), peering.CheckNodeSelector))
	keep(&err, &g.RuntimeClasses)(readNames("advertisement.runtime_classes", m.GetRuntimeClasses(), peering.MaxClasses))
	keep(&err, &g.StorageClasses)(readNames("advertisement.storage_classes", m.GetStorageClasses(), peering.MaxClasses))
	// This version cannot enforce a level or a kind of exposure that it does not know.
	keep(&err, &g.PodSecurity)(oneOf("advertisement.pod_security", peering.PodSecurity(m.GetPodSecurity()),
		peering.PodSecurityPrivileged, peering.PodSecurityBaseline, peering.PodSecurityRestricted))
	keep(&err, &g.Exposure)(oneOf("advertisement.exposure", m.GetExposure(), peering.ExposureOffloaded, peering.ExposureExported))
	keep(&err, &g.Price)(PriceListFrom("advertisement.price", m.GetPrice()))
	keep(&err, &g.LimitRange)(limitRangeFrom("advertisement.limit_range", m.GetLimitRange()))
	if err == nil {
		err = checkHourly(g, m.GetHourlyPrice())
	}
	return read(g, err)
}

func wholeSeconds(field string, m *durationpb.Duration) (time.Duration, error) {
	d, err := readDuration(field, m)
	if err == nil && d%time.Second != 0 {
		err = invalid(field, "want whole seconds")
	}
	return d, err
}

// oneOf accepts one of the known values. Any other value is of a later version.
func oneOf[T ~string](field string, s T, known ...T) (T, error) {
	switch {
	case s == "":
		return "", invalid(field, "want one of %v", known)
	case !slices.Contains(known, s):
		return "", newer(field, string(s))
	}
	return s, nil
}

// checkHourly refuses a sum that does not follow from prices and amounts, since the prices are
// what is signed. A missing sum is accepted.
func checkHourly(g peering.Grant, m *ententev1.Money) error {
	sum, err := MoneyFrom("advertisement.hourly_price", m)
	if err != nil {
		return err
	}
	hourly, err := g.Price.Hourly(g.Resources)
	if err != nil {
		return invalid("advertisement.price", "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	if m != nil && sum != hourly {
		return invalid("advertisement.hourly_price", "is %s, and the prices give %s", sum, hourly)
	}
	return nil
}

// readPool accepts the name of a pool, or an empty one.
func readPool(field, name string) (string, error) {
	if err := peering.CheckPool(name); err != nil {
		return "", invalid(field, "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	return name, nil
}

// readLabels accepts labels that check accepts. It returns nil for an empty map.
func readLabels(field string, m map[string]string, check func(map[string]string) error) (map[string]string, error) {
	if err := check(m); err != nil {
		return nil, invalid(field, "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	if len(m) == 0 {
		return nil, nil //nolint:nilnil // nil means no labels
	}
	return m, nil
}

// readNames accepts at most most names of classes, each once, in any order, and returns them
// sorted, or nil if there are no names.
func readNames(field string, names []string, most int) ([]string, error) {
	if len(names) > most {
		return nil, invalid(field, "want at most %d", most)
	}
	sorted := slices.Sorted(slices.Values(names))
	for i, name := range sorted {
		if err := peering.CheckClasses(sorted[i : i+1]); err != nil {
			return nil, invalid(field, "%s", peering.Text(err.Error(), peering.MaxMessageLen))
		}
		if i > 0 && sorted[i-1] == name {
			return nil, invalid(field, "has %s twice", name)
		}
	}
	return sorted, nil
}

// DrainUntilFrom reads until when pods may run on under a contract that the caller ends. A zero
// time means that it ends at once.
func DrainUntilFrom(t *timestamppb.Timestamp) (time.Time, error) {
	return readTime("drain_until", t)
}

// EnvelopeTo writes an envelope.
func EnvelopeTo(e peering.Envelope) *ententev1.Envelope {
	m := &ententev1.Envelope{Payload: e.Payload, PayloadType: e.PayloadType}
	for _, s := range e.Signatures {
		m.Signatures = append(m.Signatures, &ententev1.Signature{KeyId: string(s.KeyID), Sig: s.Sig})
	}
	return m
}

// EnvelopeFrom reads an envelope. It checks sizes and the form of the signers'
// IDs; Envelope.Verify checks the signatures. The envelope shares its bytes with the message.
func EnvelopeFrom(m *ententev1.Envelope) (peering.Envelope, error) {
	if n := len(m.GetPayload()); n == 0 || n > peering.MaxPayload {
		return peering.Envelope{}, invalid("envelope.payload", "has %d bytes, want 1 to %d", n, peering.MaxPayload)
	}
	if n := len(m.GetPayloadType()); n == 0 || n > peering.MaxPayloadTypeLen {
		return peering.Envelope{}, invalid("envelope.payload_type", "want 1 to %d characters", peering.MaxPayloadTypeLen)
	}
	e := peering.Envelope{Payload: m.GetPayload(), PayloadType: m.GetPayloadType()}
	var err error
	e.Signatures, err = readAll("envelope.signatures", m.GetSignatures(), peering.MaxSignatures, signatureFrom)
	return read(e, err)
}

func signatureFrom(field string, m *ententev1.Signature) (peering.Signature, error) {
	id, err := peering.ParseClusterID(m.GetKeyId())
	if err != nil {
		return peering.Signature{}, invalid(field+".key_id", "%s", err)
	}
	if n := len(m.GetSig()); n == 0 || n > peering.MaxSignatureLen {
		return peering.Signature{}, invalid(field+".sig", "has %d bytes, want 1 to %d", n, peering.MaxSignatureLen)
	}
	return peering.Signature{KeyID: id, Sig: m.GetSig()}, nil
}
