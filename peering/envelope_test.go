package peering

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type cluster struct {
	key   *ecdsa.PrivateKey
	party Party
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newCluster(t testing.TB) cluster {
	t.Helper()
	return clusterOf(t, newKey(t))
}

func clusterOf(t testing.TB, key *ecdsa.PrivateKey) cluster {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return cluster{key, Party{ID: ClusterIDOfSPKI(der), PublicKey: der}}
}

func (c cluster) sign(t testing.TB, e Envelope) Envelope {
	t.Helper()
	signed, err := e.Sign(rand.Reader, c.party.ID, c.key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func testTerms(t testing.TB, consumer, provider cluster) Terms {
	t.Helper()
	resources, err := ParseResources(map[string]string{"cpu": "1500m", "memory": "8Gi", "pods": "110"})
	if err != nil {
		t.Fatal(err)
	}
	return Terms{
		ContractID: "c-1", RequestID: "7a6b", Revision: 1, Consumer: consumer.party, Provider: provider.party, NotBefore: t0, NotAfter: t0.Add(time.Hour),
		Clauses: Clauses{
			Resources: resources, Network: true, PodSecurity: PodSecurityBaseline, NodeLabels: map[string]string{"kubernetes.io/arch": "amd64", "empty": ""}, Price: PriceList{Currency: "EUR", PerHour: map[string]Decimal{"cpu": {25_000_000}, "memory": {3_000_000}}}, Renewable: true, Notice: time.Hour, StatementPeriod: time.Hour, Exposure: ExposureOffloaded, NodeSelector: map[string]string{"topology.kubernetes.io/region": "eu"}, RuntimeClasses: []string{"gvisor", "kata"},
		},
	}
}

func envelope(t testing.TB, terms Terms) Envelope {
	t.Helper()
	e, err := NewEnvelope(terms)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The example of the DSSE specification, protocol.md.
func TestPAEIsThatOfTheSpecification(t *testing.T) {
	if got, want := string(pae("http://example.com/HelloWorld", []byte("hello world"))), "DSSEv1 29 http://example.com/HelloWorld 11 hello world"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := string(pae("", nil)), "DSSEv1 0  0 "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAContractSignedByBothIsVerifiedFromTheEnvelopeAlone(t *testing.T) {
	consumer, provider := newCluster(t), newCluster(t)
	terms := testTerms(t, consumer, provider)
	e := consumer.sign(t, envelope(t, terms))
	if _, err := e.Verify(); err == nil {
		t.Error("one signature was enough")
	}
	if _, err := e.VerifyConsumer(); err != nil {
		t.Errorf("signed by the consumer: %v", err)
	}
	e = provider.sign(t, e)
	b, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseEnvelope(b)
	if err != nil {
		t.Fatal(err)
	}
	if !again.Equal(e) || again.Hash() != e.Hash() {
		t.Error("the envelope changed on its way")
	}
	got, err := again.Verify()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(terms, got, cmp.AllowUnexported(Quantity{}, Decimal{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if twice := provider.sign(t, e); len(twice.Signatures) != 2 {
		t.Errorf("signing twice left %d signatures", len(twice.Signatures))
	}
}

func TestVerifyRefuses(t *testing.T) {
	consumer, provider, other := newCluster(t), newCluster(t), newCluster(t)
	unsigned := envelope(t, testTerms(t, consumer, provider))
	both := provider.sign(t, consumer.sign(t, unsigned))
	clone := func(e Envelope) Envelope {
		e.Payload = bytes.Clone(e.Payload)
		e.Signatures = slices.Clone(e.Signatures)
		for i := range e.Signatures {
			e.Signatures[i].Sig = bytes.Clone(e.Signatures[i].Sig)
		}
		return e
	}
	richer := testTerms(t, consumer, provider)
	richer.Resources = Resources{"cpu": Whole(1000)}
	otherType := unsigned
	otherType.PayloadType = "application/vnd.entente.contract.v2+json"
	forged := testTerms(t, consumer, provider)
	forged.Consumer.PublicKey = other.party.PublicKey
	for _, tt := range []struct {
		name string
		e    Envelope
		want string
	}{
		{"no signature", unsigned, "missing (Consumer)"},
		{"the consumer's missing", provider.sign(t, unsigned), "missing (Consumer)"},
		{"the provider's missing", consumer.sign(t, unsigned), "missing (Provider)"},
		{"a stranger's besides", other.sign(t, both), "not asked for"},
		{"a stranger's instead", other.sign(t, consumer.sign(t, unsigned)), "not asked for"},
		{"the consumer's twice", func() Envelope {
			e := clone(both)
			e.Signatures = append(e.Signatures, e.Signatures[0])
			return e
		}(), "there are two"},
		{"a stranger's under the provider's name", func() Envelope {
			e := other.sign(t, consumer.sign(t, unsigned))
			e.Signatures[1].KeyID = provider.party.ID
			return e
		}(), "wrong"},
		{"signatures exchanged", func() Envelope {
			e := clone(both)
			e.Signatures[0].Sig, e.Signatures[1].Sig = e.Signatures[1].Sig, e.Signatures[0].Sig
			return e
		}(), "wrong"},
		{"signatures of other terms", func() Envelope {
			e := envelope(t, richer)
			e.Signatures = both.Signatures
			return e
		}(), "wrong"},
		{"an empty signature", func() Envelope {
			e := clone(both)
			e.Signatures[1].Sig = nil
			return e
		}(), "wrong"},
		{"a flood of signatures", func() Envelope {
			e := clone(both)
			e.Signatures = slices.Repeat(e.Signatures, 3)
			return e
		}(), "too many"},
		{"another payload type, signed by both", provider.sign(t, consumer.sign(t, otherType)), "unknown payload type"},
		{"a payload type changed after signing", func() Envelope {
			e := clone(both)
			e.PayloadType = "text/plain"
			return e
		}(), "unknown payload type"},
		{"white space in the payload, signed by both", func() Envelope {
			e := Envelope{PayloadType: PayloadType, Payload: append([]byte(" "), unsigned.Payload...)}
			return provider.sign(t, consumer.sign(t, e))
		}(), "canonical"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			terms, err := tt.e.Verify()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if terms.ContractID != "" {
				t.Error("terms came with the error")
			}
		})
	}
	if _, err := both.VerifyConsumer(); err == nil {
		t.Error("VerifyConsumer took an envelope that the provider signed already")
	}
	if _, err := NewEnvelope(forged); err == nil {
		t.Error("terms with another's key under the consumer's ID were written")
	}
	if _, err := unsigned.Verify(); ReasonOf(err) != ReasonSignatureInvalid || !strings.Contains(err.Error(), string(consumer.party.ID)) {
		t.Errorf("got %v", err)
	}
}

func TestEveryBitOfPayloadAndSignaturesCounts(t *testing.T) {
	consumer, provider := newCluster(t), newCluster(t)
	e := provider.sign(t, consumer.sign(t, envelope(t, testTerms(t, consumer, provider))))
	for i := range e.Payload {
		bad := e
		bad.Payload = bytes.Clone(e.Payload)
		bad.Payload[i] ^= 1
		if _, err := bad.Verify(); err == nil {
			t.Fatalf("bit flipped in byte %d of the payload", i)
		}
	}
	for i := range e.Signatures[0].Sig {
		bad := e
		bad.Signatures = slices.Clone(e.Signatures)
		bad.Signatures[0].Sig = bytes.Clone(e.Signatures[0].Sig)
		bad.Signatures[0].Sig[i] ^= 1
		if _, err := bad.Verify(); err == nil {
			t.Fatalf("bit flipped in byte %d of a signature", i)
		}
	}
}

func TestTermsHaveOneForm(t *testing.T) {
	consumer, provider := newCluster(t), newCluster(t)
	good, err := testTerms(t, consumer, provider).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	dec := json.NewDecoder(bytes.NewReader(good))
	var fields map[string]any
	if err := dec.Decode(&fields); err != nil {
		t.Fatal(err)
	}
	for name := range fields {
		names = append(names, name)
	}
	last := -1
	for _, name := range slices.Sorted(slices.Values(names)) {
		at := strings.Index(string(good), `"`+name+`":`)
		if at < last {
			t.Errorf("%s is not in its place", name)
		}
		last = at
	}
	s := string(good)
	for _, tt := range []struct{ name, in string }{
		{"an unknown name", strings.Replace(s, `{"consumer"`, `{"bonus":1,"consumer"`, 1)},
		{"a name twice", strings.Replace(s, `"network":true`, `"network":false,"network":true`, 1)},
		{"a name in another case", strings.Replace(s, `"network"`, `"Network"`, 1)},
		{"a resource twice", strings.Replace(s, `"cpu":"1500m"`, `"cpu":"1","cpu":"1500m"`, 1)},
		{"an amount in another form", strings.Replace(s, `"1500m"`, `"1.5"`, 1)},
		{"an amount of no unit", strings.Replace(s, `"1500m"`, `"1500x"`, 1)},
		{"a time in another zone", strings.Replace(s, `T12:00:00Z`, `T13:00:00+01:00`, 1)},
		{"a time with fractions", strings.Replace(s, `T12:00:00Z`, `T12:00:00.5Z`, 1)},
		{"a number as text", strings.Replace(s, `"revision":1`, `"revision":"1"`, 1)},
		{"a number with a point", strings.Replace(s, `"revision":1`, `"revision":1.0`, 1)},
		{"a missing name", strings.Replace(s, `"network":true,`, ``, 1)},
		{"null", strings.Replace(s, `"network":true`, `"network":null`, 1)},
		{"white space", s + " "},
		{"more after the end", s + s},
		{"an escape", strings.Replace(s, `"c-1"`, `"c-\u0031"`, 1)},
		{"names in another order", `{"revision":1,` + strings.Replace(s[1:], `,"revision":1`, ``, 1)},
		{"too large", s + strings.Repeat(" ", MaxPayload)},
		{"nothing", ""},
		{"a price in another form", strings.Replace(s, `"0.025"`, `"0.0250"`, 1)},
		{"a price as a number", strings.Replace(s, `"0.025"`, `0.025`, 1)},
		{"no prices at all", strings.Replace(s, `"perHour":{"cpu":"0.025","memory":"0.003"}`, `"perHour":null`, 1)},
		{"no succession", strings.Replace(s, `,"succession":[]`, ``, 1)},
		{"a succession that is null", strings.Replace(s, `"succession":[]`, `"succession":null`, 1)},
		{"classes in another order", strings.Replace(s, `["gvisor","kata"]`, `["kata","gvisor"]`, 1)},
		{"a notice in parts of a second", strings.Replace(s, `"noticeSeconds":3600`, `"noticeSeconds":3600.5`, 1)},
		{"a notice that overflows", strings.Replace(s, `"noticeSeconds":3600`, `"noticeSeconds":9223372036854775807`, 1)},
		{"a notice below zero", strings.Replace(s, `"noticeSeconds":3600`, `"noticeSeconds":-1`, 1)},
		{"no exposure", strings.Replace(s, `"exposure":"Offloaded",`, ``, 1)},
		{"a key in another alphabet", strings.NewReplacer("+", "-", "/", "_").Replace(s)},
	} {
		if tt.in == s {
			t.Errorf("%s: the test changes nothing", tt.name)
		}
		if _, err := ParseTerms([]byte(tt.in)); err == nil {
			t.Errorf("%s: accepted", tt.name)
		}
	}
}

func TestTermsAreChecked(t *testing.T) {
	consumer, provider := newCluster(t), newCluster(t)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	spki384, _ := x509.MarshalPKIXPublicKey(p384.Public())
	many := map[string]string{}
	for i := range MaxNodeLabels + 1 {
		many[fmt.Sprintf("l%d", i)] = ""
	}
	for name, change := range map[string]func(*Terms){
		"no contract ID":                     func(t *Terms) { t.ContractID = "" },
		"a malformed contract ID":            func(t *Terms) { t.ContractID = "A_b" },
		"a contract ID that ends in hyphen":  func(t *Terms) { t.ContractID = "a-" },
		"a long contract ID":                 func(t *Terms) { t.ContractID = strings.Repeat("a", MaxContractIDLen+1) },
		"no request ID":                      func(t *Terms) { t.RequestID = "" },
		"a request ID with a slash":          func(t *Terms) { t.RequestID = "a/b" },
		"revision 0":                         func(t *Terms) { t.Revision = 0 },
		"a first revision with a previous":   func(t *Terms) { t.Previous = Hash{1} },
		"a second revision without":          func(t *Terms) { t.Revision = 2 },
		"a revision beyond JSON":             func(t *Terms) { t.Revision, t.Previous = MaxRevision+1, Hash{1} },
		"a contract with itself":             func(t *Terms) { t.Provider = t.Consumer },
		"an ID that is not the key's":        func(t *Terms) { t.Consumer.ID = idA },
		"a key of another curve":             func(t *Terms) { t.Consumer = Party{ID: ClusterIDOfSPKI(spki384), PublicKey: spki384} },
		"no key":                             func(t *Terms) { t.Provider.PublicKey = nil },
		"a malformed key":                    func(t *Terms) { t.Provider = Party{ID: ClusterIDOfSPKI([]byte("x")), PublicKey: []byte("x")} },
		"no resources":                       func(t *Terms) { t.Resources = nil },
		"half a pod":                         func(t *Terms) { t.Resources["pods"], _ = ParseQuantity("500m") },
		"a resource without a name":          func(t *Terms) { t.Resources[""] = Whole(1) },
		"an end before the beginning":        func(t *Terms) { t.NotAfter = t.NotBefore },
		"an end in the far future":           func(t *Terms) { t.NotAfter = t.NotBefore.Add(MaxContractLife + time.Second) },
		"no beginning":                       func(t *Terms) { t.NotBefore = time.Time{} },
		"fractions of a second":              func(t *Terms) { t.NotBefore = t.NotBefore.Add(time.Millisecond) },
		"another time zone":                  func(t *Terms) { t.NotBefore = t.NotBefore.In(time.FixedZone("x", 3600)) },
		"no pod security":                    func(t *Terms) { t.PodSecurity = "" },
		"an unknown pod security":            func(t *Terms) { t.PodSecurity = "lax" },
		"a label name with a space":          func(t *Terms) { t.NodeLabels = map[string]string{"a b": ""} },
		"a label name with a long prefix":    func(t *Terms) { t.NodeLabels = map[string]string{strings.Repeat("a.", 200) + "/b": ""} },
		"a label value that begins with dot": func(t *Terms) { t.NodeLabels = map[string]string{"a": ".b"} },
		"a long label value":                 func(t *Terms) { t.NodeLabels = map[string]string{"a": strings.Repeat("b", 64)} },
		"too many labels":                    func(t *Terms) { t.NodeLabels = many },
		"too many labels to choose by":       func(t *Terms) { t.NodeSelector = many },
		"a price in no currency":             func(t *Terms) { t.Price.Currency = "" },
		"a currency of no price":             func(t *Terms) { t.Price.PerHour = nil },
		"a notice beyond a month":            func(t *Terms) { t.Notice = MaxNotice + time.Second },
		"a notice in parts of a second":      func(t *Terms) { t.Notice = time.Millisecond },
		"statements by the second":           func(t *Terms) { t.StatementPeriod = time.Second },
		"statements by the year":             func(t *Terms) { t.StatementPeriod = 8760 * time.Hour },
		"statements in parts of a second":    func(t *Terms) { t.StatementPeriod += time.Millisecond },
		"another exposure":                   func(t *Terms) { t.Exposure = "Everything" },
		"a limit range of devices":           func(t *Terms) { t.LimitRange.Max = Resources{"nvidia.com/gpu": Whole(1)} },
		"a least that is more than the most": func(t *Terms) {
			t.LimitRange.Min, t.LimitRange.Max = Resources{"cpu": Whole(2)}, Resources{"cpu": Whole(1)}
		},
		"a malformed pool":             func(t *Terms) { t.Pool = "GPU.x" },
		"a pool with a long name":      func(t *Terms) { t.Pool = strings.Repeat("a", MaxPoolNameLen+1) },
		"a runtime class twice":        func(t *Terms) { t.RuntimeClasses = []string{"a", "a"} },
		"runtime classes out of order": func(t *Terms) { t.RuntimeClasses = []string{"b", "a"} },
		"a malformed runtime class":    func(t *Terms) { t.RuntimeClasses = []string{"A"} },
		"an empty runtime class":       func(t *Terms) { t.RuntimeClasses = []string{""} },
		"a forged succession":          func(t *Terms) { t.Consumer.Succession = [][]byte{[]byte("x")} },
		"more than a payload can have": nil,
	} {
		terms := testTerms(t, consumer, provider)
		terms.Resources = maps.Clone(terms.Resources)
		if change == nil {
			fill(t, &terms)
			if err := terms.Check(); err != nil {
				t.Error(err)
			}
		} else {
			change(&terms)
		}
		if _, err := terms.Marshal(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	terms := testTerms(t, consumer, provider)
	if r, ok := terms.RoleOf(provider.party.ID); !ok || r != Provider || terms.Party(r).ID != provider.party.ID || r.Other() != Consumer {
		t.Error("roles")
	}
	if _, ok := terms.RoleOf(idA); ok {
		t.Error("a stranger has a role")
	}
}

// fill makes terms whose every part is within its limit, and the whole is not.
func fill(tb testing.TB, t *Terms) {
	tb.Helper()
	c := newCluster(tb)
	for range MaxSuccession {
		next := newKey(tb)
		der := cross(tb, rand.Reader, c.party.ID, next.Public(), c.key, func(c *x509.Certificate) { c.Subject.CommonName = strings.Repeat("x", 1400) })
		c.party.Succession, c.key = append(c.party.Succession, der), next
	}
	t.Consumer = c.party
	t.NodeLabels, t.NodeSelector = map[string]string{}, map[string]string{}
	for i := range MaxNodeLabels {
		t.NodeLabels[fmt.Sprintf("%s%02d/%s", strings.Repeat("a.", 125), i, strings.Repeat("a", 63))] = strings.Repeat("a", 63)
	}
	for i := range MaxNodeSelector {
		t.NodeSelector[fmt.Sprintf("%s%02d/%s", strings.Repeat("a.", 125), i, strings.Repeat("a", 63))] = strings.Repeat("a", 63)
	}
	t.Resources, t.Price = Resources{}, PriceList{Currency: "EUR", PerHour: map[string]Decimal{}}
	for i := range MaxResources {
		name := fmt.Sprintf("%s%02d/%s", strings.Repeat("a", 60), i, strings.Repeat("a", 63))
		t.Resources[name], t.Price.PerHour[name] = Whole(1<<62+1), Decimal{maxDecimal}
	}
	t.RuntimeClasses = nil
	for i := range MaxClasses {
		t.RuntimeClasses = append(t.RuntimeClasses, fmt.Sprintf("%s%02d", strings.Repeat("a.", 125), i))
	}
}

func TestEnvelopeJSON(t *testing.T) {
	consumer, provider := newCluster(t), newCluster(t)
	e := consumer.sign(t, envelope(t, testTerms(t, consumer, provider)))
	url := base64.URLEncoding.EncodeToString(e.Payload)
	id := string(consumer.party.ID)
	if got, err := ParseEnvelope(fmt.Appendf(nil, `{"extra":1,"payload":%q,"payloadType":%q,"signatures":[{"keyid":%q,"sig":%q,"x":2}]}`,
		url, PayloadType, id, base64.URLEncoding.EncodeToString(e.Signatures[0].Sig))); err != nil || !got.Equal(e) {
		t.Errorf("DSSE's other base64 and unknown names: %v", err)
	}
	sig := fmt.Sprintf(`{"keyid":%q,"sig":"AA=="}`, id)
	for name, s := range map[string]string{
		"nothing":             ``,
		"another type":        `[]`,
		"no payload":          `{"payloadType":"x","signatures":[]}`,
		"no payload type":     `{"payload":"AA==","signatures":[]}`,
		"payload not base64":  `{"payload":"!","payloadType":"x"}`,
		"a payload too large": `{"payload":"` + strings.Repeat("A", 90000) + `","payloadType":"x"}`,
		"too many signatures": `{"payload":"AA==","payloadType":"x","signatures":[` + strings.Repeat(sig+",", MaxSignatures) + sig + `]}`,
		"keyid not an ID":     `{"payload":"AA==","payloadType":"x","signatures":[{"keyid":"x","sig":"AA=="}]}`,
		"an empty signature":  fmt.Sprintf(`{"payload":"AA==","payloadType":"x","signatures":[{"keyid":%q,"sig":""}]}`, id),
		"a long signature":    fmt.Sprintf(`{"payload":"AA==","payloadType":"x","signatures":[{"keyid":%q,"sig":%q}]}`, id, strings.Repeat("A", 1024)),
		"too large":           `{"x":"` + strings.Repeat("A", MaxEnvelope) + `"}`,
	} {
		if _, err := ParseEnvelope([]byte(s)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzParseTerms(f *testing.F) {
	for _, name := range []string{"contract", "contract-revised"} {
		b, err := os.ReadFile("testdata/" + name + ".payload.json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.TrimSpace(b))
	}
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		terms, err := ParseTerms(b)
		if err != nil {
			return
		}
		again, err := terms.Marshal()
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%q became %q, %v", b, again, err)
		}
	})
}

func FuzzParseEnvelope(f *testing.F) {
	provider := clusterOf(f, fixedKey(f, 2))
	signed := map[string]bool{}
	for _, name := range []string{"contract", "contract-revised", "statement"} {
		b, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		e, err := ParseEnvelope(b)
		if err != nil {
			f.Fatal(err)
		}
		signed[string(e.Payload)] = true
		f.Add(b)
	}
	f.Add([]byte(`{"payload":"AA==","payloadType":"x","signatures":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ParseEnvelope(b)
		if err != nil {
			return
		}
		out, err := got.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseEnvelope(out)
		if err != nil || !again.Equal(got) {
			t.Fatalf("%q became %q, %v", b, out, err)
		}
		if _, err := got.Verify(); err == nil && !signed[string(got.Payload)] {
			t.Error("a contract without signatures was verified")
		}
		if _, err := got.VerifyStatement(provider.party); err == nil && !signed[string(got.Payload)] {
			t.Error("a statement without signatures was verified")
		}
	})
}
