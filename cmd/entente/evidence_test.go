package main

import (
	"crypto/rand"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// Keys and signatures are random, so the evidence is made again only when asked
// for: after a change of what is signed.
var updateEvidence = flag.Bool("update-evidence", false, "make the contracts and statements in docs/verify-contract again")

// evidenceFolder has a contract in two revisions, the second signed by the
// provider with a key of its own succession, two statements of use, the provider's
// trust bundle, and the two cluster IDs. It is what docs/verify-contract.md shows.
const evidenceFolder = "../../docs/verify-contract"

func evidenceFile(name string) []byte {
	b, err := os.ReadFile(filepath.Join(evidenceFolder, name))
	if err != nil {
		panic(err)
	}
	return []byte(strings.TrimSuffix(string(b), "\n"))
}

func evidencePath(name string) string { return filepath.Join(evidenceFolder, name) }

func evidenceID(party string) string { return string(evidenceFile(party + ".id")) }

// overlap is for how long an old root is presented.
const overlap = 30 * 24 * time.Hour

// maker makes evidence.
type maker struct {
	t                  testing.TB
	consumer, provider *identity.Identity
}

func newMaker(t testing.TB) *maker {
	t.Helper()
	m := &maker{t: t}
	m.consumer, m.provider = m.identity(identity.Generate(epoch)), m.identity(identity.Generate(epoch))
	return m
}

func (m *maker) identity(i *identity.Identity, err error) *identity.Identity {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
	return i
}

func (m *maker) price() peering.PriceList {
	m.t.Helper()
	return peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{"cpu": m.decimal("0.02"), "memory": m.decimal("0.005")}}
}

func (m *maker) decimal(s string) peering.Decimal {
	m.t.Helper()
	d, err := peering.ParseDecimal(s)
	if err != nil {
		m.t.Fatal(err)
	}
	return d
}

func (m *maker) resources(r map[string]string) peering.Resources {
	m.t.Helper()
	out, err := peering.ParseResources(r)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// terms are those of a first revision.
func (m *maker) terms() peering.Terms {
	m.t.Helper()
	return peering.Terms{
		ContractID: "7f3c9a", RequestID: "1c1f0c9e-5b1e-4a54-9c7e-0d6f2b1a3e77", Revision: 1, Consumer: m.consumer.Party(), Provider: m.provider.Party(), NotBefore: epoch, NotAfter: epoch.Add(24 * time.Hour),
		Clauses: peering.Clauses{
			Resources: m.resources(map[string]string{"cpu": "4", "memory": "8Gi", "pods": "110"}), Network: true, PodSecurity: peering.PodSecurityBaseline, NodeLabels: map[string]string{"kubernetes.io/arch": "amd64"}, Price: m.price(), Renewable: true, Notice: time.Hour, StatementPeriod: time.Hour, Exposure: peering.ExposureOffloaded, NodeSelector: map[string]string{"pool": "guests"}, RuntimeClasses: []string{"gvisor"},
		},
	}
}

// next are the terms that follow others, for more CPU.
func (m *maker) next(before peering.Envelope) peering.Terms {
	m.t.Helper()
	t := m.terms()
	t.Revision, t.Previous = 2, before.Hash()
	t.Resources = m.resources(map[string]string{"cpu": "8", "memory": "8Gi", "pods": "110"})
	t.NotBefore, t.NotAfter = epoch.Add(time.Hour), epoch.Add(25*time.Hour)
	return t
}

func (m *maker) contract(t peering.Terms) peering.Envelope {
	m.t.Helper()
	e, err := peering.NewEnvelope(t)
	if err != nil {
		m.t.Fatal(err)
	}
	return m.sign(m.sign(e, m.consumer), m.provider)
}

// statement is the n-th statement, which follows the previous one.
func (m *maker) statement(n uint64, before *peering.Envelope) peering.Statement {
	m.t.Helper()
	s := peering.Statement{
		ContractID: "7f3c9a", Revision: n, Consumer: m.consumer.ID(), Provider: m.provider.ID(), Sequence: n,
		From: epoch.Add(time.Duration(n-1) * time.Hour), To: epoch.Add(time.Duration(n) * time.Hour), Price: m.price(),
	}
	var err error
	// Two cores, four and a half gibibytes and three pods, for an hour.
	s.Used, err = peering.ParseUsage(map[string]string{"cpu": "7200", "memory": "17394617548800", "pods": "10800"})
	if err == nil {
		s.Amount, err = s.Price.Cost(s.Used)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	if before != nil {
		s.Previous = before.Hash()
	}
	return s
}

func (m *maker) stated(s peering.Statement) peering.Envelope {
	m.t.Helper()
	e, err := peering.NewStatementEnvelope(s)
	if err != nil {
		m.t.Fatal(err)
	}
	return m.sign(e, m.provider)
}

func (m *maker) sign(e peering.Envelope, by *identity.Identity) peering.Envelope {
	m.t.Helper()
	e, err := e.Sign(rand.Reader, by.ID(), by.Signer())
	if err != nil {
		m.t.Fatal(err)
	}
	return e
}

// rollover gives the provider a new key.
func (m *maker) rollover() {
	m.t.Helper()
	m.provider = m.identity(m.provider.Rollover(epoch.Add(30*time.Minute), overlap))
}

func (m *maker) raw(e peering.Envelope) string {
	m.t.Helper()
	b, err := e.Marshal()
	if err != nil {
		m.t.Fatal(err)
	}
	return string(b)
}

// TestThirdPartyEvidenceVerifies checks the files that the documentation shows,
// and makes them when asked to.
func TestThirdPartyEvidenceVerifies(t *testing.T) {
	if *updateEvidence {
		m := newMaker(t)
		one := m.contract(m.terms())
		first := m.stated(m.statement(1, nil))
		m.rollover()
		two := m.contract(m.next(one))
		second := m.stated(m.statement(2, &first))
		for name, text := range map[string]string{
			"contract-1.json": m.raw(one), "contract-2.json": m.raw(two), "statement-1.json": m.raw(first), "statement-2.json": m.raw(second),
			"provider.pem": strings.TrimSpace(m.provider.TrustBundle().PEM()),
			"consumer.id":  string(m.consumer.ID()), "provider.id": string(m.provider.ID()),
		} {
			if err := os.MkdirAll(evidenceFolder, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(evidencePath(name), []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	golden(t, "contract-verify", newWorld(),
		[]string{"contract", "verify", evidencePath("contract-1.json"), "--consumer", evidenceID("consumer"), "--provider", evidenceID("provider")},
		[]string{"contract", "verify", evidencePath("statement-2.json"), evidencePath("contract-2.json"), evidencePath("statement-1.json"), evidencePath("contract-1.json")},
		[]string{"contract", "verify", evidencePath("contract-1.json"), evidencePath("statement-1.json"), "-o", "yaml"},
		[]string{"contract", "verify", evidencePath("contract-1.json"), evidencePath("statement-2.json"), "--provider-bundle", evidencePath("provider.pem")},
		// Signed with a key that the contract does not know.
		[]string{"contract", "verify", evidencePath("contract-1.json"), evidencePath("statement-2.json")},
		[]string{"contract", "verify", evidencePath("statement-1.json")},
		[]string{"contract", "verify", evidencePath("contract-1.json"), "--provider", evidenceID("consumer")},
		[]string{"contract", "verify", evidencePath("provider.pem")},
		[]string{"contract", "verify", "no-such-file"},
		[]string{"contract", "verify"},
	)
}
