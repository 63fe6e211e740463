package peering

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Role is a cluster's part in a contract.
type Role uint8

// The roles.
const (
	Consumer Role = iota + 1
	Provider
)

func (r Role) String() string {
	return nameOf(r, []string{Consumer: "Consumer", Provider: "Provider"})
}

// nameOf returns the name of a value of a small type, or its number if it has no name.
func nameOf[E ~uint8](value E, names []string) string {
	if int(value) < len(names) && names[value] != "" {
		return names[value]
	}
	return fmt.Sprintf("%T(%d)", value, uint8(value))
}

// Other returns the other side.
func (r Role) Other() Role {
	switch r {
	case Consumer:
		return Provider
	case Provider:
		return Consumer
	}
	return r
}

// Party is one side of a contract. It includes the key, so that a contract can be verified with
// only the two IDs.
type Party struct {
	ID ClusterID
	// PublicKey is the identity key, an ECDSA P-256 SubjectPublicKeyInfo in DER. Its
	// hash is ID.
	PublicKey []byte
	// Succession is how the key was rolled over since: X.509 certificates in DER,
	// each for the next key and signed by the one before. The last key signs.
	Succession [][]byte
}

// PodSecurity is a level of the Kubernetes Pod Security Standards.
type PodSecurity string

// The levels.
const (
	PodSecurityPrivileged PodSecurity = "privileged"
	PodSecurityBaseline   PodSecurity = "baseline"
	PodSecurityRestricted PodSecurity = "restricted"
)

// Terms is what two clusters agree on: the payload of a contract's envelope.
type Terms struct {
	// ContractID identifies the contract; the provider chose it. Up to 64 characters of
	// a-z, 0-9 and inner hyphens.
	ContractID string
	// RequestID identifies the consumer's request for ever. Up to 64 characters of
	// letters, digits, dots, hyphens and underscores.
	RequestID string
	// Revision counts from 1.
	Revision uint64
	// Previous is the hash of the revision before, zero for the first.
	Previous Hash

	Consumer Party
	Provider Party

	// NotBefore and NotAfter bound the contract, in whole seconds, UTC.
	NotBefore time.Time
	NotAfter  time.Time

	Clauses
}

// Clauses are what an offer and the contract that follows from it have in common: what is
// granted, and on which terms.
type Clauses struct {
	// Resources are what the provider grants.
	Resources Resources
	// Network means that a tunnel joins the two clusters.
	Network bool
	// PodSecurity is the level that offloaded pods have to meet.
	PodSecurity PodSecurity
	// NodeLabels are the labels of the virtual node.
	NodeLabels map[string]string
	// Price is what use costs.
	Price PriceList
	// Renewable means that the provider intends to renew the contract.
	Renewable bool
	// Notice is how long pods may run on when the provider ends the contract before
	// its time, in whole seconds.
	Notice time.Duration
	// StatementPeriod is how long each statement of use covers, in whole seconds;
	// zero if no statements are made.
	StatementPeriod time.Duration
	// Exposure is which pods and services of the two clusters reach each other.
	Exposure string
	// Pool is the provider's name of these nodes, if the consumer asked for them by it.
	Pool string
	// NodeSelector are labels of the nodes on which offloaded pods run.
	NodeSelector map[string]string
	// RuntimeClasses are those that offloaded pods may name, sorted.
	RuntimeClasses []string
	// LimitRange has the defaults and bounds of containers. It is the same in all revisions of the
	// contract: otherwise two pods that are equal at home would count differently.
	LimitRange LimitRange
}

// Differs returns the first difference of other clauses from these, or nothing if they are equal.
func (c Clauses) Differs(other Clauses) string {
	own, others := c.Resources.Strings(), other.Resources.Strings()
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if _, ok := own[name]; !ok {
			return name + " is not among the resources"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if others[name] != own[name] {
			return fmt.Sprintf("%s is %s, not %s", name, cmp.Or(others[name], "missing"), own[name])
		}
	}
	for _, clause := range []struct {
		same bool
		what string
	}{
		{c.Network == other.Network, "network differs"},
		{c.PodSecurity == other.PodSecurity, "Pod Security level differs"},
		{maps.Equal(c.NodeLabels, other.NodeLabels), "node labels differ"},
		{c.Price.Equal(other.Price), "price differs"},
		{c.Renewable == other.Renewable, "renewable differs"},
		{c.Notice == other.Notice, "notice differs"},
		{c.StatementPeriod == other.StatementPeriod, "statement period differs"},
		{c.Exposure == other.Exposure, "exposure differs"},
		{c.Pool == other.Pool, "pool differs"},
		{maps.Equal(c.NodeSelector, other.NodeSelector), "node selector differs"},
		{slices.Equal(c.RuntimeClasses, other.RuntimeClasses), "runtime classes differ"},
		{c.LimitRange.Equal(other.LimitRange), "limit range differs"},
	} {
		if !clause.same {
			return clause.what
		}
	}
	return ""
}

// Values of Clauses.Exposure.
const (
	// ExposureOffloaded is only offloaded pods and the services of their namespaces.
	ExposureOffloaded = "Offloaded"
	// ExposureExported adds, for the consumer's pods, the Services that the provider's policy
	// exports to the consumer, on their own ports. The provider can change at any time which these
	// are; what is signed is that they may be imported.
	ExposureExported = "OffloadedAndExported"
)

// PayloadType is the type of a contract's payload, in its envelope.
const PayloadType = "application/vnd.entente.contract.v1+json"

// jsonTerms is the JSON of Terms. Fields are in the order of their JSON names,
// so that encoding/json gives the canonical form.
type jsonTerms struct {
	Consumer        jsonParty         `json:"consumer"`
	ContractID      string            `json:"contractID"`
	Exposure        string            `json:"exposure"`
	LimitRange      *jsonLimitRange   `json:"limitRange,omitempty"`
	Network         bool              `json:"network"`
	NodeLabels      map[string]string `json:"nodeLabels"`
	NodeSelector    map[string]string `json:"nodeSelector"`
	NotAfter        string            `json:"notAfter"`
	NotBefore       string            `json:"notBefore"`
	Notice          int64             `json:"noticeSeconds"`
	PodSecurity     string            `json:"podSecurity"`
	Pool            string            `json:"pool,omitempty"`
	Previous        string            `json:"previousHash"`
	Price           PriceList         `json:"price"`
	Provider        jsonParty         `json:"provider"`
	Renewable       bool              `json:"renewable"`
	RequestID       string            `json:"requestID"`
	Resources       map[string]string `json:"resources"`
	Revision        uint64            `json:"revision"`
	RuntimeClasses  []string          `json:"runtimeClasses"`
	StatementPeriod int64             `json:"statementPeriodSeconds"`
}

type jsonParty struct {
	ID         ClusterID `json:"id"`
	PublicKey  []byte    `json:"publicKey"`
	Succession [][]byte  `json:"succession"`
}

func partyJSON(p Party) jsonParty {
	j := jsonParty(p)
	if j.Succession == nil {
		j.Succession = [][]byte{}
	}
	return j
}

func (j jsonParty) party() Party {
	p := Party(j)
	if len(p.Succession) == 0 {
		p.Succession = nil
	}
	return p
}

// Marshal writes the terms in their only form, which is that of RFC 8785: no
// white space, names sorted, times as RFC 3339 in UTC, amounts in canonical form,
// nothing left out but an empty limit range and an empty pool. It fails if the terms are not valid.
func (t Terms) Marshal() ([]byte, error) {
	if err := t.Check(); err != nil {
		return nil, fmt.Errorf("encode terms: %w", err)
	}
	b, err := canonical(jsonTerms{
		Consumer:        partyJSON(t.Consumer),
		ContractID:      t.ContractID,
		Exposure:        t.Exposure,
		LimitRange:      limitRangeJSON(t.LimitRange),
		Network:         t.Network,
		NodeLabels:      orEmpty(t.NodeLabels),
		NodeSelector:    orEmpty(t.NodeSelector),
		NotAfter:        t.NotAfter.Format(time.RFC3339),
		NotBefore:       t.NotBefore.Format(time.RFC3339),
		Notice:          seconds(t.Notice),
		PodSecurity:     string(t.PodSecurity),
		Pool:            t.Pool,
		Previous:        hashText(t.Previous),
		Price:           t.Price.written(),
		Provider:        partyJSON(t.Provider),
		Renewable:       t.Renewable,
		RequestID:       t.RequestID,
		Resources:       t.Resources.Strings(),
		Revision:        t.Revision,
		RuntimeClasses:  append([]string{}, t.RuntimeClasses...),
		StatementPeriod: seconds(t.StatementPeriod),
	}, MaxPayload)
	if err != nil {
		return nil, fmt.Errorf("encode terms: %w", err)
	}
	return b, nil
}

// ParseTerms reads only what Marshal wrote. A signer must know every field, and all readers must
// read the same; so what a later version adds has a payload type of its own.
func ParseTerms(payload []byte) (Terms, error) {
	return parsePayload("terms", payload, MaxPayload, jsonTerms.terms)
}

// parsePayload reads only what a value's Marshal wrote: a payload that differs from that in any
// byte is refused. So a name that is unknown, repeated or in another case is refused too.
func parsePayload[J any, T interface{ Marshal() ([]byte, error) }](what string, payload []byte, limit int, value func(J) (T, error)) (out T, err error) {
	if len(payload) > limit {
		return out, fmt.Errorf("%s: %d bytes, more than %d", what, len(payload), limit)
	}
	var j J
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&j); err != nil {
		return out, fmt.Errorf("%s: %w", what, err)
	}
	read, err := value(j)
	if err != nil {
		return out, fmt.Errorf("%s: %w", what, err)
	}
	again, err := read.Marshal()
	if err != nil {
		return out, err
	}
	if !bytes.Equal(again, payload) {
		return out, fmt.Errorf("%s: not in canonical form: a name is repeated or missing, or the text differs from what RFC 8785 gives", what)
	}
	return read, nil
}

func (j jsonTerms) terms() (Terms, error) {
	t := Terms{
		ContractID: j.ContractID, RequestID: j.RequestID, Revision: j.Revision, Consumer: j.Consumer.party(), Provider: j.Provider.party(),
		Clauses: Clauses{
			Network: j.Network, PodSecurity: PodSecurity(j.PodSecurity), NodeLabels: j.NodeLabels, Price: j.Price.read(), Renewable: j.Renewable, Exposure: j.Exposure, Pool: j.Pool, NodeSelector: j.NodeSelector,
		},
	}
	if len(j.RuntimeClasses) > 0 {
		t.RuntimeClasses = j.RuntimeClasses
	}
	var err error
	if j.Previous != "" {
		if t.Previous, err = ParseHash(j.Previous); err != nil {
			return Terms{}, fmt.Errorf("previousHash: %w", err)
		}
	}
	if t.Resources, err = ParseResources(j.Resources); err != nil {
		return Terms{}, err
	}
	if t.NotBefore, err = time.Parse(time.RFC3339, j.NotBefore); err != nil {
		return Terms{}, errors.New("notBefore is not RFC 3339")
	}
	if t.NotAfter, err = time.Parse(time.RFC3339, j.NotAfter); err != nil {
		return Terms{}, errors.New("notAfter is not RFC 3339")
	}
	if t.Notice, err = duration(j.Notice); err != nil {
		return Terms{}, fmt.Errorf("noticeSeconds: %w", err)
	}
	if t.StatementPeriod, err = duration(j.StatementPeriod); err != nil {
		return Terms{}, fmt.Errorf("statementPeriodSeconds: %w", err)
	}
	if t.LimitRange, err = j.LimitRange.limitRange(); err != nil {
		return Terms{}, err
	}
	return t, nil
}

// Check returns what is wrong with the terms, if anything. It does not use the current time.
func (t Terms) Check() error {
	for _, check := range []func() error{t.checkNames, t.checkParties, t.checkTimes, t.checkAmounts, t.checkConditions} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (t Terms) checkNames() error {
	if err := CheckContractID(t.ContractID); err != nil {
		return err
	}
	if err := checkRequestID(t.RequestID); err != nil {
		return err
	}
	if t.Revision == 0 || t.Revision > MaxRevision {
		return fmt.Errorf("revision %d is not from 1 to %d", t.Revision, uint64(MaxRevision))
	}
	if (t.Revision == 1) != (t.Previous == Hash{}) {
		return errors.New("previousHash has to be empty in the first revision and present in every other")
	}
	switch t.PodSecurity {
	case PodSecurityPrivileged, PodSecurityBaseline, PodSecurityRestricted:
	default:
		return errors.New("podSecurity is not privileged, baseline or restricted")
	}
	return CheckNodeLabels(t.NodeLabels)
}

func (t Terms) checkParties() error {
	if t.Consumer.ID == t.Provider.ID {
		return errors.New("consumer and provider are the same cluster")
	}
	if _, err := t.Consumer.Key(); err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	if _, err := t.Provider.Key(); err != nil {
		return fmt.Errorf("provider: %w", err)
	}
	return nil
}

func (t Terms) checkTimes() error {
	for _, at := range []time.Time{t.NotBefore, t.NotAfter} {
		if !wholeSecond(at) {
			return errors.New("notBefore and notAfter have to be whole seconds, UTC, from 1970 to 9999")
		}
	}
	if d := t.NotAfter.Sub(t.NotBefore); d <= 0 || d > MaxContractLife {
		return fmt.Errorf("notAfter is not within %s after notBefore", MaxContractLife)
	}
	return nil
}

func (t Terms) checkAmounts() error {
	if len(t.Resources) == 0 || len(t.Resources) > MaxResources {
		return fmt.Errorf("%d resources, want 1 to %d", len(t.Resources), MaxResources)
	}
	for _, name := range t.Resources.Names() {
		if err := checkResourceName(name); err != nil {
			return err
		}
		if !Fractional(name) && !t.Resources[name].IsWhole() {
			return fmt.Errorf("resource %s is not a whole number", name)
		}
	}
	return nil
}

func (t Terms) checkConditions() error {
	if err := t.Price.Check(); err != nil {
		return err
	}
	switch {
	case t.Notice < 0 || t.Notice > MaxNotice || t.Notice%time.Second != 0:
		return fmt.Errorf("notice is not in whole seconds up to %s", MaxNotice)
	case t.StatementPeriod != 0 && (t.StatementPeriod < MinStatementPeriod || t.StatementPeriod > MaxStatementPeriod || t.StatementPeriod%time.Second != 0):
		return fmt.Errorf("statementPeriod is not in whole seconds from %s to %s", MinStatementPeriod, MaxStatementPeriod)
	case t.Exposure != ExposureOffloaded && t.Exposure != ExposureExported:
		return fmt.Errorf("exposure is neither %s nor %s", ExposureOffloaded, ExposureExported)
	case t.Exposure == ExposureExported && !t.Network:
		return fmt.Errorf("exposure is %s, and there is no tunnel", ExposureExported)
	}
	if err := cmp.Or(CheckPool(t.Pool), CheckNodeSelector(t.NodeSelector)); err != nil {
		return err
	}
	if err := t.LimitRange.Check(); err != nil {
		return err
	}
	return CheckClasses(t.RuntimeClasses)
}

// maxUnix is the end of the year 9999, the last that RFC 3339 can write.
const maxUnix = 253402300799

// wholeSecond reports whether a time can be written in a payload.
func wholeSecond(t time.Time) bool {
	return t.Location() == time.UTC && t.Nanosecond() == 0 && t.Unix() > 0 && t.Unix() <= maxUnix
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

func duration(seconds int64) (time.Duration, error) {
	if seconds < 0 || seconds > int64(MaxContractLife/time.Second) {
		return 0, fmt.Errorf("%d is not from 0 to %d", seconds, int64(MaxContractLife/time.Second))
	}
	return time.Duration(seconds) * time.Second, nil
}

// payloadHash is the SHA-256 of the payload's bytes, by which a later revision names its previous
// one.
func payloadHash(payload []byte) Hash { return Hash(sha256.Sum256(payload)) }

// Party returns the side that has a role.
func (t Terms) Party(r Role) Party {
	if r == Consumer {
		return t.Consumer
	}
	return t.Provider
}

// RoleOf returns the role of a cluster, or false if it is not a party.
func (t Terms) RoleOf(id ClusterID) (Role, bool) {
	switch id {
	case t.Consumer.ID:
		return Consumer, true
	case t.Provider.ID:
		return Provider, true
	default:
		return 0, false
	}
}

// CheckContractID checks the form of a contract ID: a DNS label of up to 64
// characters' room, as it names objects.
func CheckContractID(s string) error {
	if s == "" || len(s) > MaxContractIDLen {
		return fmt.Errorf("contract ID has %d characters, want 1 to %d", len(s), MaxContractIDLen)
	}
	if !isLabel(lower+digits, s) {
		return errors.New("contract ID has other characters than a-z, 0-9 and inner hyphens")
	}
	return nil
}

func checkRequestID(s string) error {
	if s == "" || len(s) > MaxRequestIDLen {
		return fmt.Errorf("request ID has %d characters, want 1 to %d", len(s), MaxRequestIDLen)
	}
	if !onlyNameChars(s) {
		return errors.New("request ID has other characters than letters, digits, dots, hyphens and underscores")
	}
	return nil
}

// CheckNodeLabels checks number, names and values of labels by the rules of
// Kubernetes.
func CheckNodeLabels(labels map[string]string) error { return checkLabels(labels, MaxNodeLabels) }

// CheckNodeSelector checks number, names and values of the labels by which nodes
// are chosen.
func CheckNodeSelector(labels map[string]string) error { return checkLabels(labels, MaxNodeSelector) }

// CheckPool checks the name of a pool of nodes: empty, or a DNS label.
func CheckPool(name string) error {
	if name == "" || len(name) <= MaxPoolNameLen && isLabel(lower+digits, name) {
		return nil
	}
	return fmt.Errorf("pool %.32q: its name is not up to %d characters of a-z, 0-9 and inner hyphens", name, MaxPoolNameLen)
}

// CheckClasses checks names of runtime classes or storage classes: DNS
// subdomains, sorted, each once.
func CheckClasses(names []string) error {
	if len(names) > MaxClasses {
		return fmt.Errorf("%d classes, more than %d", len(names), MaxClasses)
	}
	for i, name := range names {
		if len(name) > MaxClassNameLen || name != strings.ToLower(name) || strings.HasSuffix(name, ".") || checkDNSName(name) != nil {
			return fmt.Errorf("class %.64q: its name is not a lower-case DNS name", name)
		}
		if i > 0 && names[i-1] >= name {
			return fmt.Errorf("class %s: it is repeated, or not in order", name)
		}
	}
	return nil
}

func checkLabels(labels map[string]string, limit int) error {
	if len(labels) > limit {
		return fmt.Errorf("%d node labels, more than %d", len(labels), limit)
	}
	for k, v := range labels {
		if len(k) > MaxLabelKeyLen {
			return fmt.Errorf("a node label's name has %d characters, more than %d", len(k), MaxLabelKeyLen)
		}
		if err := checkQualifiedName(k); err != nil {
			return fmt.Errorf("node label %q: %w", k, err)
		}
		if len(v) > MaxLabelValueLen || v != "" && !isName(v) {
			return fmt.Errorf("node label %q: its value is not valid in Kubernetes", k)
		}
	}
	return nil
}

// checkQualifiedName checks [prefix/]name: prefix a DNS name, name up to 63
// characters.
func checkQualifiedName(s string) error {
	name := s
	if prefix, rest, ok := strings.Cut(s, "/"); ok {
		if prefix != strings.ToLower(prefix) || strings.HasSuffix(prefix, ".") || checkDNSName(prefix) != nil {
			return errors.New("prefix is not a lower-case DNS name")
		}
		name = rest
	}
	if len(name) > 63 || !isName(name) {
		return errors.New("name is not 1 to 63 letters, digits, inner dots, hyphens and underscores")
	}
	return nil
}

// isName reports whether s begins and ends with a letter or digit and has only name characters.
func isName(s string) bool {
	return s != "" && onlyNameChars(s) && !strings.ContainsAny(s[:1]+s[len(s)-1:], ".-_")
}

func onlyNameChars(s string) bool { return only(letters+digits+".-_", s) }
