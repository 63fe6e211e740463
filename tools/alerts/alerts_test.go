package alerts

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"gopkg.in/yaml.v3"
)

const monitoring = "../../charts/entente/files/monitoring"

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func rules(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil || len(file.Groups) != 1 || len(file.Groups[0].Rules) < 10 {
		t.Fatalf("%d groups, %v", len(file.Groups), err)
	}
	return file.Groups[0].Rules
}

// metrics are the names of what docs/metrics.md documents.
func metrics(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(entente_[a-z_]+)` \\|").FindAllSubmatch(page, -1) {
		out = append(out, string(m[1]))
	}
	return out
}

// check parses an expression, and fails where it names a metric that is not documented.
func check(t *testing.T, where, expression string, known []string) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok && !slices.Contains(known, strings.TrimSuffix(v.Name, "_bucket")) {
			t.Errorf("%s: there is no metric %s", where, v.Name)
		}
		return nil
	})
}

func TestAlertsNameMetricsThatThereAre(t *testing.T) {
	known := metrics(t)
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for _, m := range regexp.MustCompile("(?m)^### `(\\w+)`$").FindAllSubmatch(page, -1) {
		sections = append(sections, strings.ToLower(string(m[1])))
	}
	for _, r := range rules(t) {
		check(t, r.Alert, r.Expr, known)
		if held, err := time.ParseDuration(r.For); err != nil || held < time.Minute {
			t.Errorf("%s fires at once: for %q", r.Alert, r.For)
		}
		if page, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#"); !strings.HasSuffix(page, "/docs/troubleshooting.md") || !slices.Contains(sections, anchor) {
			t.Errorf("%s leads to %q, and there is no such section", r.Alert, r.Annotations["runbook_url"])
		}
		if !strings.HasPrefix(r.Alert, "Entente") || !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s has no name of ours, no severity, or says nothing", r.Alert)
		}
	}
}

func TestDashboardNamesMetricsThatThereAre(t *testing.T) {
	known := metrics(t)
	text, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil || len(board.Panels) < 10 {
		t.Fatalf("%d panels, %v", len(board.Panels), err)
	}
	for _, p := range board.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			check(t, p.Title, strings.NewReplacer("$__rate_interval", "1m", "$peer", ".*").Replace(target.Expr), known)
		}
	}
}

// TestAlertsFire has each alert see what it is for, and what it is not for.
func TestAlertsFire(t *testing.T) {
	const at = 3600 * time.Second
	path := `{instance="n1",peer="p",node="gw"}`
	way := `{instance="n1",peer="p",node="gw",connection_type="Direct"}`
	for _, tc := range []struct{ alert, fires, quiet string }{
		{"EntenteAgentDown", "", "entente_sessions 0+0x60"},
		{
			"EntentePeerDisconnected", `entente_peer_condition{peer="p",type="Connected"} 0+0x60`,
			`entente_peer_condition{peer="p",type="Connected"} 1+0x60` + "\n" + `entente_peer_condition{peer="p",type="Network"} 0+0x60` + "\n" + `entente_peer_condition{peer="q",type="Connected"} 1+0x56 0+0x4`,
		},
		{
			"EntentePeerNetworkDown", `entente_peer_condition{peer="p",type="Network"} 0+0x60`,
			`entente_peer_condition{peer="p",type="Network"} 1+0x60` + "\n" + `entente_peer_condition{peer="p",type="Connected"} 0+0x60` + "\n" +
				`entente_peer_condition{peer="q",type="Network"} 0+0x60` + "\n" + `entente_peer_nodes_cut_off{peer="q"} 1+0x60`,
		},
		{"EntenteNodesCutOff", `entente_peer_nodes_cut_off{peer="p"} 1+0x60`, `entente_peer_nodes_cut_off{peer="p"} 0+0x60`},
		{"EntenteAliasPoolNearlyFull", `entente_alias_pool_addresses{family="IPv4"} 1000+0x60` + "\n" + `entente_alias_pool_used_addresses{family="IPv4"} 900+0x60`, `entente_alias_pool_addresses{family="IPv4"} 1000+0x60` + "\n" + `entente_alias_pool_used_addresses{family="IPv4"} 500+0x45 900+0x15`},
		{"EntentePresharedKeyOld", `entente_preshared_key_due_seconds{peer="p"} -90000+0x60`, `entente_preshared_key_due_seconds{peer="p"} -80000+0x60`},
		{"EntenteNodeKeyOld", `entente_fabric_key_due_seconds{instance="n"} -200000+0x60`, `entente_fabric_key_due_seconds{instance="n"} -90000+0x60`},
		{
			"EntenteNetworkDown", "entente_fabric_path_up" + way + " 0+0x60",
			"entente_fabric_path_up" + way + " 0+0x60\nentente_fabric_path_up{instance=\"n1\",peer=\"p\",node=\"gw2\",way=\"Direct\"} 1+0x60\n" +
				"entente_fabric_path_up{instance=\"n1\",peer=\"\",node=\"home\",way=\"Direct\"} 0+0x60\n" +
				"entente_fabric_path_up{instance=\"n1\",peer=\"briefly\",node=\"gw\",way=\"Direct\"} 1+0x58 0 0",
		},
		{"EntenteGatewayStandbyDown", "entente_fabric_path_up" + way + " 0+0x60", "entente_fabric_path_up" + way + " 1+0x60"},
		{"EntenteLargePacketsLost", "entente_fabric_large_packets_lost" + path + " 1+0x60", "entente_fabric_large_packets_lost" + path + " 0+0x60"},
		{"EntentePodsUnreachable", `entente_fabric_end_to_end_up{instance="n1",peer="p"} 0+0x60`, `entente_fabric_end_to_end_up{instance="n1",peer="p"} 1+0x57 0 0 0`},
		{
			"EntenteNoHandshake", "entente_fabric_last_handshake_seconds" + path + " 3000+0x60\nentente_fabric_path_active" + path + " 1+0x60",
			"entente_fabric_last_handshake_seconds" + path + " 0+60x60\nentente_fabric_path_active" + path + " 1+0x60\n" +
				"entente_fabric_last_handshake_seconds{instance=\"n1\",peer=\"p\",node=\"idle\"} 100+0x60\nentente_fabric_path_active{instance=\"n1\",peer=\"p\",node=\"idle\"} 0+0x60",
		},
		{
			"EntenteProbesLost", "entente_fabric_probes_total" + path + " 0+60x60\nentente_fabric_probes_answered_total" + path + " 0+50x60\nentente_fabric_path_active" + path + " 1+0x60",
			"entente_fabric_probes_total" + path + " 0+60x60\nentente_fabric_probes_answered_total" + path + " 0+59x60\nentente_fabric_path_active" + path + " 1+0x60",
		},
		{"EntenteGatewaysFlap", `entente_fabric_switches_total{instance="n1",peer="p"} 0+1x60`, `entente_fabric_switches_total{instance="n1",peer="p"} 0+0x57 1 2 2`},
		{
			"EntenteRelayed", `entente_fabric_path_up{instance="n1",peer="p",node="gw",connection_type="Relayed"} 1+0x60` + "\nentente_fabric_path_active" + path + " 1+0x60",
			"entente_fabric_path_up" + way + " 1+0x60\nentente_fabric_path_active" + path + " 1+0x60",
		},
		{"EntentePacketsDropped", `entente_fabric_dropped_packets_total{instance="n1",reason="not_exposed",peer=""} 0+900x60`, `entente_fabric_dropped_packets_total{instance="n1",reason="not_exposed",peer=""} 0+60x60`},
		{"EntenteNodeHasProblems", `entente_fabric_problems{instance="n1"} 1+0x60`, `entente_fabric_problems{instance="n1"} 0+0x60`},
		{"EntenteClocksDiffer", `entente_session_clock_skew_seconds{peer="p"} -40+0x60`, `entente_session_clock_skew_seconds{peer="p"} 2+0x60`},
		{"EntenteCertificateNotRenewed", `entente_certificate_not_after_seconds{kind="leaf",peer=""} 20000+0x60`, `entente_certificate_not_after_seconds{kind="leaf",peer=""} 80000+0x60`},
		{"EntenteRootEnds", `entente_certificate_not_after_seconds{kind="root",peer=""} 86400+0x60`, `entente_certificate_not_after_seconds{kind="root",peer=""} 86400000+0x60`},
		{
			"EntenteContractNotRenewed",
			`entente_contract_not_before_seconds{contract="c",role="consumer",peer="p"} 0+0x60` + "\n" + `entente_contract_not_after_seconds{contract="c",role="consumer",peer="p"} 3640+0x60`,
			`entente_contract_not_before_seconds{contract="c",role="consumer",peer="p"} 0+0x60` + "\n" + `entente_contract_not_after_seconds{contract="c",role="consumer",peer="p"} 14400+0x60` + "\n" +
				`entente_contract_not_before_seconds{contract="d",role="provider",peer="p"} 0+0x60` + "\n" + `entente_contract_not_after_seconds{contract="d",role="provider",peer="p"} 3640+0x60`,
		},
	} {
		i := slices.IndexFunc(rules(t), func(r rule) bool { return r.Alert == tc.alert })
		if i < 0 {
			t.Errorf("there is no alert %s", tc.alert)
			continue
		}
		for series, want := range map[string]bool{tc.fires: true, tc.quiet: false} {
			if got := fires(t, rules(t)[i], series, at); got != want {
				t.Errorf("%s fires: %t, want %t, with\n%s", tc.alert, got, want, series)
			}
		}
	}
	if n := len(rules(t)); n != 21 {
		t.Errorf("%d alerts, of which 21 are tried", n)
	}
}

// fires says whether an alert is firing at a time, with series of a sample a minute: whether its
// expression has had one result for as long as it says.
func fires(t *testing.T, r rule, series string, at time.Duration) bool {
	t.Helper()
	held, err := time.ParseDuration(r.For)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("load 1m\n")
	for line := range strings.Lines(series) {
		fmt.Fprintf(&b, "  %s\n", strings.TrimSuffix(line, "\n"))
	}
	storage := promqltest.LoadedStorage(t, b.String())
	defer storage.Close()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 10000, Timeout: 10 * time.Second})
	const step = 30 * time.Second
	end := time.Unix(0, 0).Add(at)
	query, err := engine.NewRangeQuery(t.Context(), storage, nil, r.Expr, end.Add(-held), end, step)
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	result := query.Exec(t.Context())
	if result.Err != nil {
		t.Fatalf("%s: %v", r.Expr, result.Err)
	}
	matrix, err := result.Matrix()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range matrix {
		if len(s.Floats) == int(held/step)+1 {
			return true
		}
	}
	return false
}
