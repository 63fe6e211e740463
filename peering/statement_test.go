package peering

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite testdata")

func testStatement(t testing.TB, consumer, provider cluster) Statement {
	t.Helper()
	used, err := ParseUsage(map[string]string{"cpu": "3600.5", "memory": "3865470566400", "pods": "7200"})
	if err != nil {
		t.Fatal(err)
	}
	s := Statement{
		ContractID: "c-1", Revision: 1, Consumer: consumer.party.ID, Provider: provider.party.ID, Sequence: 2, Previous: Hash{7},
		From: t0, To: t0.Add(time.Hour), Used: used,
		Price: PriceList{Currency: "EUR", PerHour: map[string]Decimal{"cpu": {25_000_000}, "memory": {3_000_000}}},
	}
	if s.Amount, err = s.Price.Cost(s.Used); err != nil {
		t.Fatal(err)
	}
	return s
}

func statement(t testing.TB, s Statement) Envelope {
	t.Helper()
	e, err := NewStatementEnvelope(s)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestStatementIsVerified(t *testing.T) {
	consumer, provider := newCluster(t), newCluster(t)
	s := testStatement(t, consumer, provider)
	e := provider.sign(t, statement(t, s))
	b, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseEnvelope(b)
	if err != nil {
		t.Fatal(err)
	}
	got, err := again.VerifyStatement(provider.party)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, got, cmp.AllowUnexported(Decimal{}, UnitSeconds{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Before a rollover and after, and from before when it is checked after.
	rolled := provider.rollover(t)
	for name, e := range map[string]Envelope{"old key": e, "new key": rolled.sign(t, statement(t, s))} {
		if _, err := e.VerifyStatement(rolled.party); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := rolled.sign(t, statement(t, s)).VerifyStatement(provider.party); err == nil {
		t.Error("a key that the verifier does not know was taken")
	}
}

func TestVerifyStatementRefuses(t *testing.T) {
	consumer, provider, other := newCluster(t), newCluster(t), newCluster(t)
	s := testStatement(t, consumer, provider)
	good := provider.sign(t, statement(t, s))
	cheaper := s
	cheaper.Used = Usage{}
	cheaper.Amount = Money{Currency: "EUR"}
	lie := bytes.Replace(good.Payload, []byte(`"amount":"`), []byte(`"amount":"9`), 1)
	for _, tt := range []struct {
		name string
		e    Envelope
		want string
	}{
		{"no signature", statement(t, s), "0 signatures"},
		{"the consumer's", consumer.sign(t, statement(t, s)), "not asked for"},
		{"both", consumer.sign(t, good), "2 signatures"},
		{"a stranger's", other.sign(t, statement(t, s)), "not asked for"},
		{"a stranger's under the provider's name", func() Envelope {
			e := other.sign(t, statement(t, s))
			e.Signatures[0].KeyID = provider.party.ID
			return e
		}(), "wrong"},
		{"another statement's", Envelope{PayloadType: StatementPayloadType, Payload: statement(t, cheaper).Payload, Signatures: good.Signatures}, "wrong"},
		{"a contract's payload type", provider.sign(t, Envelope{PayloadType: PayloadType, Payload: good.Payload}), "unknown payload type"},
		{"an amount that is wrong, and signed", provider.sign(t, Envelope{PayloadType: StatementPayloadType, Payload: lie}), "its use costs EUR"},
		{"white space, and signed", provider.sign(t, Envelope{PayloadType: StatementPayloadType, Payload: append([]byte(" "), good.Payload...)}), "canonical"},
		{"an endless signature", Envelope{PayloadType: StatementPayloadType, Payload: good.Payload, Signatures: []Signature{{KeyID: provider.party.ID, Sig: make([]byte, 1<<20)}}}, "wrong"},
		{"another provider's", other.sign(t, statement(t, testStatement(t, consumer, other))), "not of"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.e.VerifyStatement(provider.party)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if got.ContractID != "" {
				t.Error("a statement came with the error")
			}
		})
	}
	if _, err := good.Verify(); err == nil {
		t.Error("a statement was taken for a contract")
	}
	for i := range good.Payload {
		bad := good
		bad.Payload = bytes.Clone(good.Payload)
		bad.Payload[i] ^= 1
		if _, err := bad.VerifyStatement(provider.party); err == nil {
			t.Fatalf("bit flipped in byte %d", i)
		}
	}
}

func TestStatementIsChecked(t *testing.T) {
	consumer, provider := newCluster(t), newCluster(t)
	for name, change := range map[string]func(*Statement){
		"no contract":                  func(s *Statement) { s.ContractID = "" },
		"no consumer":                  func(s *Statement) { s.Consumer = "" },
		"a malformed provider":         func(s *Statement) { s.Provider = "x" },
		"with itself":                  func(s *Statement) { s.Provider = s.Consumer },
		"revision 0":                   func(s *Statement) { s.Revision = 0 },
		"a revision beyond JSON":       func(s *Statement) { s.Revision = MaxRevision + 1 },
		"sequence 0":                   func(s *Statement) { s.Sequence = 0 },
		"a sequence beyond JSON":       func(s *Statement) { s.Sequence = MaxRevision + 1 },
		"a first with a previous":      func(s *Statement) { s.Sequence = 1 },
		"a second without":             func(s *Statement) { s.Previous = Hash{} },
		"an end before the beginning":  func(s *Statement) { s.To = s.From },
		"parts of a second":            func(s *Statement) { s.To = s.To.Add(time.Millisecond) },
		"another time zone":            func(s *Statement) { s.From = s.From.In(time.FixedZone("x", 3600)) },
		"no time":                      func(s *Statement) { s.From = time.Time{} },
		"a higher amount":              func(s *Statement) { s.Amount.Amount.nano++ },
		"a lower amount":               func(s *Statement) { s.Amount.Amount.nano-- },
		"another currency":             func(s *Statement) { s.Amount.Currency = "USD" },
		"no amount":                    func(s *Statement) { s.Amount = Money{} },
		"other prices":                 func(s *Statement) { s.Price.PerHour = map[string]Decimal{"cpu": {1}} },
		"prices in no currency":        func(s *Statement) { s.Price.Currency = "" },
		"what was not used":            func(s *Statement) { s.Used["nvidia.com/gpu"] = UnitSeconds{} },
		"a resource that has no name":  func(s *Statement) { s.Used[""] = UnitSeconds{lo: 1} },
		"more than any money pays for": func(s *Statement) { s.Used["cpu"] = UnitSeconds{hi: 1 << 60} },
		"too many resources": func(s *Statement) {
			for i := range MaxResources + 1 {
				s.Used[fmt.Sprintf("r%d", i)] = UnitSeconds{lo: 1}
			}
		},
	} {
		s := testStatement(t, consumer, provider)
		change(&s)
		if _, err := s.Marshal(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	free := testStatement(t, consumer, provider)
	free.Price, free.Amount = PriceList{}, Money{}
	if _, err := free.Marshal(); err != nil {
		t.Errorf("free of charge: %v", err)
	}
	nothing := testStatement(t, consumer, provider)
	nothing.Used, nothing.Amount = nil, Money{Currency: "EUR"}
	if b, err := nothing.Marshal(); err != nil || !strings.Contains(string(b), `"unitSeconds":{}`) {
		t.Errorf("nothing used: %s, %v", b, err)
	}
}

// The largest statement that a contract can lead to can be written, and fits a
// custom resource.
func TestLargestStatementFits(t *testing.T) {
	consumer, provider := newCluster(t), newCluster(t)
	s := testStatement(t, consumer, provider)
	s.ContractID, s.Revision, s.Sequence = strings.Repeat("c", MaxContractIDLen), MaxRevision, MaxRevision
	s.Used, s.Price.PerHour = Usage{}, map[string]Decimal{}
	for i := range MaxResources {
		name := fmt.Sprintf("%s%02d/%s", strings.Repeat("a", 60), i, strings.Repeat("a", 63))
		if len(name) > MaxResourceNameLen {
			t.Fatal(len(name))
		}
		s.Used[name] = unitSecondsOf(Quantity{units: math.MaxInt64, milli: 999}, MaxStatementPeriod)
		// What is not used may have a price that is as long as prices get.
		s.Price.PerHour[strings.Replace(name, "a", "b", 1)] = Decimal{maxDecimal}
	}
	s.Amount = Money{Currency: "EUR"}
	e := provider.sign(t, statement(t, s))
	b, err := e.Marshal()
	if err != nil || len(b) > 32768 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	t.Logf("payload %d bytes, envelope %d", len(e.Payload), len(b))
}

func TestStatementHasOneForm(t *testing.T) {
	consumer, provider := newCluster(t), newCluster(t)
	good, err := testStatement(t, consumer, provider).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	sortedNames(t, good)
	s := string(good)
	for _, tt := range []struct{ name, in string }{
		{"an unknown name", strings.Replace(s, `{"amount"`, `{"aaa":1,"amount"`, 1)},
		{"a name twice", strings.Replace(s, `"revision":1`, `"revision":2,"revision":1`, 1)},
		{"a name in another case", strings.Replace(s, `"unitSeconds"`, `"unitseconds"`, 1)},
		{"an amount in another form", strings.Replace(s, `"3600.5"`, `"3600.50"`, 1)},
		{"an amount as a number", strings.Replace(s, `"3600.5"`, `3600.5`, 1)},
		{"no previous hash", strings.Replace(s, `"previousHash":"07`, `"previousHash":"0`, 1)},
		{"a missing name", strings.Replace(s, `"sequence":2,`, ``, 1)},
		{"null", strings.Replace(s, `"sequence":2`, `"sequence":null`, 1)},
		{"white space", s + "\n"},
		{"more after the end", s + s},
		{"an escape", strings.Replace(s, `"c-1"`, `"c-\u0031"`, 1)},
		{"too large", s + strings.Repeat(" ", MaxStatement)},
		{"nothing", ""},
		{"an array", "[]"},
	} {
		if tt.in == s {
			t.Errorf("%s: the test changes nothing", tt.name)
		}
		if _, err := ParseStatement([]byte(tt.in)); err == nil {
			t.Errorf("%s: accepted", tt.name)
		}
	}
}

// sortedNames checks that every object of a JSON text has its names in order.
func sortedNames(t testing.TB, b []byte) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(b))
	type level struct {
		object, value bool
		last          string
	}
	var stack []level
	for {
		tok, err := dec.Token()
		if err != nil {
			return
		}
		top := len(stack) - 1
		switch tok := tok.(type) {
		case json.Delim:
			if tok == '}' || tok == ']' {
				stack = stack[:top]
				continue
			}
			if top >= 0 {
				stack[top].value = false
			}
			stack = append(stack, level{object: tok == '{'})
			continue
		case string:
			if top >= 0 && stack[top].object && !stack[top].value {
				if stack[top].last >= tok && stack[top].last != "" {
					t.Errorf("%q comes after %q", tok, stack[top].last)
				}
				stack[top].last, stack[top].value = tok, true
				continue
			}
		}
		if top >= 0 {
			stack[top].value = false
		}
	}
}

// fixedKey is a key that is the same in every run.
func fixedKey(t testing.TB, n byte) *ecdsa.PrivateKey {
	t.Helper()
	secret := sha256.Sum256([]byte{n})
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), secret[:])
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestSignedBytesStayTheSame keeps the bytes that are signed: a change of one byte breaks every existing
// contract.
func TestSignedBytesStayTheSame(t *testing.T) {
	consumer, provider := clusterOf(t, fixedKey(t, 1)), clusterOf(t, fixedKey(t, 2))
	next := fixedKey(t, 3)
	provider.party.Succession = [][]byte{cross(t, nil, provider.party.ID, next.Public(), provider.key, nil)}
	provider.key = next
	sign := func(e Envelope, by ...cluster) Envelope {
		for _, c := range by {
			var err error
			if e, err = e.Sign(nil, c.party.ID, c.key); err != nil { // no randomness: RFC 6979
				t.Fatal(err)
			}
		}
		return e
	}
	first := envelope(t, testTerms(t, consumer, provider))
	revised := testTerms(t, consumer, provider)
	revised.Revision, revised.Previous = 2, first.Hash()
	revised.Price, revised.NodeSelector, revised.RuntimeClasses, revised.NodeLabels = PriceList{}, nil, nil, nil
	revised.Notice, revised.StatementPeriod, revised.Renewable, revised.Network = 0, 0, false, false
	for _, tt := range []struct {
		file   string
		e      Envelope
		verify func(Envelope) error
	}{
		{"contract", sign(first, consumer, provider), func(e Envelope) error { _, err := e.Verify(); return err }},
		{"contract-revised", sign(envelope(t, revised), consumer, provider), func(e Envelope) error { _, err := e.Verify(); return err }},
		{"statement", sign(statement(t, testStatement(t, consumer, provider)), provider), func(e Envelope) error {
			_, err := e.VerifyStatement(provider.party)
			return err
		}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			sortedNames(t, tt.e.Payload)
			text, err := tt.e.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			for name, got := range map[string][]byte{tt.file + ".payload.json": tt.e.Payload, tt.file + ".json": text} {
				file := filepath.Join("testdata", name)
				if *update {
					if err := os.WriteFile(file, append(slices.Clone(got), '\n'), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(strings.TrimSuffix(string(want), "\n"), string(got)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			stored, err := ParseEnvelope(text)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.verify(stored); err != nil {
				t.Error(err)
			}
		})
	}
}

func FuzzParseStatement(f *testing.F) {
	consumer, provider := clusterOf(f, fixedKey(f, 1)), clusterOf(f, fixedKey(f, 2))
	s := testStatement(f, consumer, provider)
	for _, edit := range []func(*Statement){
		func(*Statement) {},
		func(s *Statement) { s.Sequence, s.Previous = 1, Hash{} },
		func(s *Statement) { s.Used, s.Price, s.Amount = nil, PriceList{}, Money{} },
	} {
		edit(&s)
		good, err := s.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(good)
	}
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseStatement(b)
		if err != nil {
			return
		}
		again, err := s.Marshal()
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%q became %q, %v", b, again, err)
		}
		if cost, err := s.Price.Cost(s.Used); err != nil || cost != s.Amount {
			t.Fatalf("%q: costs %s, %v", b, cost, err)
		}
	})
}
