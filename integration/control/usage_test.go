package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
	"github.com/entente-dev/entente/peering"
)

// statementsOf returns a cluster's statements of a contract, verified as anyone who knows the
// provider can.
func statementsOf(c *v1alpha1.Contract, provider peering.Party) ([]peering.Statement, error) {
	var out []peering.Statement
	for _, s := range c.Status.Statements {
		e, err := peering.ParseEnvelope([]byte(s.Envelope))
		if err != nil {
			return nil, err
		}
		statement, err := e.VerifyStatement(provider)
		if err != nil {
			return nil, fmt.Errorf("statement %d: %w", s.Sequence, err)
		}
		if statement.Sequence != uint64(s.Sequence) {
			return nil, fmt.Errorf("statement %d is kept as %d", statement.Sequence, s.Sequence)
		}
		out = append(out, statement)
	}
	return out, nil
}

// unitSeconds reads an amount of use.
func unitSeconds(text string) float64 {
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

// TestTheCountsOfBothSidesAgree: pods run abroad over several periods, while each
// agent is killed once; what the provider states and what the consumer counted
// agree to a percent, and neither is more than what ran.
func TestTheCountsOfBothSidesAgree(t *testing.T) {
	only.Matrix(t, "more than a minute; internal/controller has both sides count over restarts")
	home, abroad := agents(t)
	ctx := t.Context()
	offerBy(t, abroad, func(p *v1alpha1.PeeringPolicySpec) {
		p.Price, p.StatementPeriod = costs("3.6"), lasting(time.Minute) // a processor-second is a tenth of a cent
	}, "cpu=8", "memory=16Gi", "pods=40")
	name := peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
	namespace, _ := offloaded(t, home, abroad)
	provider, err := partyOf(ctx, abroad)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for i := range 2 {
		p := remotePod(namespace, fmt.Sprintf("busy-%d", i), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = amounts("cpu=1", "memory=1Gi")
		})
		if err := home.client.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
		if err := runs(ctx, home, p); err != nil {
			t.Fatal(err)
		}
	}
	started := time.Now()
	for _, c := range []*cluster{abroad, home} {
		time.Sleep(10 * time.Second)
		if err := c.restart(ctx); err != nil {
			t.Fatal(err)
		}
	}
	var mine, theirs v1alpha1.Contract
	err = eventually.Is(ctx, 4*time.Minute, "two periods to be stated and compared", func(ctx context.Context) error {
		if err := errors.Join(home.get(ctx, name, &mine), abroad.get(ctx, name, &theirs)); err != nil {
			return err
		}
		for _, kind := range []string{"StatementsValid", "UsageAgrees"} {
			if c := meta.FindStatusCondition(mine.Status.Conditions, kind); c != nil && c.Status != "True" {
				return eventually.Permanent(fmt.Errorf("%s is %s: %s: %s", kind, c.Status, c.Reason, c.Message))
			}
		}
		if len(mine.Status.Statements) < 2 {
			return fmt.Errorf("there are %d statements at home and %d abroad", len(mine.Status.Statements), len(theirs.Status.Statements))
		}
		return errors.Join(conditionTrue(mine.Status.Conditions, "StatementsValid"), conditionTrue(mine.Status.Conditions, "UsageAgrees"))
	})
	if err != nil {
		t.Fatal(err)
	}
	ran := time.Since(begin).Seconds()
	at := time.Now()
	statements, err := statementsOf(&mine, provider)
	if err != nil {
		t.Fatal(err)
	}
	own := mine.Status.Usage.Periods
	stated, counted := 0.0, 0.0
	for i, s := range statements {
		if theirs.Status.Statements[i].Envelope != mine.Status.Statements[i].Envelope {
			t.Errorf("statement %d is another at home", s.Sequence)
		}
		if !own[i].Since.Time.Equal(s.From) || !own[i].Until.Time.Equal(s.To) {
			t.Errorf("statement %d is of %s to %s, counted were %s to %s", s.Sequence, s.From, s.To, own[i].Since, own[i].Until)
		}
		said, cpu := unitSeconds(s.Used["cpu"].String()), unitSeconds(own[i].UnitSeconds["cpu"])
		t.Logf("period %d: the provider states %.3f processor-seconds for %s, the consumer counted %.3f", s.Sequence, said, s.Amount, cpu)
		stated, counted = stated+said, counted+cpu
		if i > 0 && s.From.After(started) && (said > 2*60+0.001 || said < 2*60*0.99) {
			t.Errorf("two processors in a minute are stated as %.3f processor-seconds", said)
		}
	}
	// One percent, and a second of two processors: that pods began is seen at different moments on the two sides.
	if apart := math.Abs(stated - counted); stated == 0 || apart > 0.01*stated+2 {
		t.Errorf("the provider states %.3f, the consumer counted %.3f", stated, counted)
	}
	t.Logf("in all %.3f were stated and %.3f counted, %.2f%% apart", stated, counted, 100*(stated-counted)/stated)
	if stated > 2*ran {
		t.Errorf("%.3f processor-seconds are stated, and two processors ran for %.1f s", stated, ran)
	}
	if err := metricsSay(ctx, home, name, "consumer", 2); err != nil {
		t.Error(err)
	}
	if err := metricsSay(ctx, abroad, name, "provider", 2); err != nil {
		t.Error(err)
	}
	// The end comes within a period: what was used of it is stated too, and kept until
	// the consumer has heard of it.
	if err := home.client.Patch(ctx, &mine, ctrlclient.RawPatch("application/merge-patch+json", []byte(`{"spec":{"termination":"Now"}}`))); err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(ctx, soon, "the last statement", func(ctx context.Context) error {
		if err := home.get(ctx, name, &mine); err != nil {
			return eventually.Permanent(err)
		}
		all, err := statementsOf(&mine, provider)
		if err != nil {
			return eventually.Permanent(err)
		}
		last := all[len(all)-1]
		if last.To.Sub(last.From) == time.Minute {
			return fmt.Errorf("the newest of %d is of a whole minute until %s; it is %s", len(all), last.To, mine.Status.Phase)
		}
		t.Logf("the last statement is of %s: %s processor-seconds for %s", last.To.Sub(last.From), last.Used["cpu"], last.Amount)
		if last.To.Before(at) {
			return eventually.Permanent(fmt.Errorf("it ends at %s", last.To))
		}
		return errors.Join(conditionTrue(mine.Status.Conditions, "StatementsValid"), conditionTrue(mine.Status.Conditions, "UsageAgrees"))
	})
	if err != nil {
		t.Error(err)
	}
}

// metricsOf asks a cluster's agent for its metrics.
func metricsOf(ctx context.Context, c *cluster, token string) (*http.Response, error) {
	cm, err := c.kube.CoreV1().ConfigMaps(systemNamespace).Get(ctx, client.CAConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(cm.Data[client.CAKey])) {
		return nil, errors.New("the ConfigMap has no authority")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.metricsAddress+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	return web.Do(req)
}

// metricsSay checks the metrics of a contract of a cluster's agent.
func metricsSay(ctx context.Context, c *cluster, contract, role string, cpu float64) error {
	token, err := c.user(ctx, "prometheus", "entente-metrics")
	if err != nil {
		return err
	}
	resp, err := metricsOf(ctx, c, token)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("its metrics: %s", resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return err
	}
	used, ends := -1.0, 0.0
	for line := range strings.SplitSeq(string(text), "\n") {
		if !strings.Contains(line, `contract="`+contract+`"`) || !strings.Contains(line, `role="`+role+`"`) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		if err != nil {
			return err
		}
		switch {
		case strings.HasPrefix(line, "entente_contract_not_after_seconds{"):
			ends = value
		case strings.HasPrefix(line, "entente_contract_used{") && strings.Contains(line, `resource="cpu"`):
			used = value
		}
	}
	if used != cpu || ends < float64(time.Now().Unix()) {
		return fmt.Errorf("the metrics of %s say that %g processors are used until %g", c.name, used, ends)
	}
	return nil
}

// TestMetricsRequireTheRightToReadThem: they are about all peers, and any pod reaches their port.
func TestMetricsRequireTheRightToReadThem(t *testing.T) {
	home, _ := agents(t)
	for role, want := range map[string]int{"": http.StatusForbidden, "entente-metrics": http.StatusOK, "none": http.StatusUnauthorized} {
		token := ""
		if role != "none" {
			var err error
			if token, err = home.user(t.Context(), "reader"+strings.TrimPrefix(role, "entente"), role); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := metricsOf(t.Context(), home, token)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("with the role %q: got %s, want %d", role, resp.Status, want)
		}
	}
}
