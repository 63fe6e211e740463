package refused

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

const one = peering.ClusterID("one-id")

var start = time.Unix(1_800_000_000, 0)

// rig is a Log whose consumer is known until gone is set.
type rig struct {
	*Log
	recorder *events.FakeRecorder
	gone     bool
}

func newRig() *rig {
	r := &rig{recorder: events.NewFakeRecorder(1000)}
	r.Log = New(Config{Events: r.recorder, Log: slog.New(slog.DiscardHandler), Find: func(context.Context, peering.ClusterID) (*v1alpha1.ForeignCluster, error) {
		if r.gone {
			return nil, nil
		}
		return &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, nil
	}})
	return r
}

// events returns the events that a report at a time writes.
func (r *rig) events(t *testing.T, now time.Time) string {
	r.report(t.Context(), now)
	var out []string
	for {
		select {
		case e := <-r.recorder.Events:
			out = append(out, e)
		default:
			return strings.Join(out, "\n")
		}
	}
}

func pod(i int) peering.ObjectRef {
	return peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: fmt.Sprint("web-", i), UID: fmt.Sprint(i)}
}

func refusal(reason peering.RefusalReason, message string) error {
	return fmt.Errorf("apply: %w", &peering.Refusal{Reason: reason, Message: message})
}

func TestRefusedPodsShowInOneEvent(t *testing.T) {
	t.Parallel()
	r := newRig()
	for i := range 3 {
		for range 2 {
			r.Applied(one, pod(i), refusal(peering.RefusedPodSecurity, "privileged\x1b[2J containers are not allowed"), start)
		}
	}
	want := "Warning ObjectsRefused PodSecurity: 3 pods of one refused within 1 min, the last one: privileged [2J containers are not allowed"
	if got := r.events(t, start.Add(time.Minute)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := r.events(t, start.Add(2*time.Minute)); got != "" {
		t.Errorf("it is reported again: %q", got)
	}
}

func TestRefusalsOfOneReasonAreReportedSeldom(t *testing.T) {
	t.Parallel()
	r := newRig()
	var reported int
	for m := range 60 {
		now := start.Add(time.Duration(m) * time.Minute)
		r.Applied(one, pod(m), refusal(peering.RefusedInvalid, "x"), now)
		if r.events(t, now) != "" {
			reported++
		}
	}
	if reported != 4 {
		t.Errorf("%d events in an hour, want 4", reported)
	}
}

func TestRefusalsThatPassAreNotReported(t *testing.T) {
	t.Parallel()
	r := newRig()
	waits := &peering.Refusal{Reason: peering.RefusedInternal, Retryable: true, Message: "later"}
	r.Applied(one, pod(1), waits, start)
	r.Applied(one, pod(2), refusal(peering.RefusedInvalid, "x"), start)
	r.Applied(one, pod(2), nil, start.Add(time.Second))
	if got := r.events(t, start.Add(time.Minute)); got != "" {
		t.Errorf("reported: %q", got)
	}
	r.Applied(one, pod(1), waits, start.Add(time.Minute))
	if got := r.events(t, start.Add(2*time.Minute)); !strings.Contains(got, "ProviderError: 1 pod of one") {
		t.Errorf("one that lasts is not reported: %q", got)
	}
}

func TestNoReasonHidesAnother(t *testing.T) {
	t.Parallel()
	r := newRig()
	for i := range 2000 {
		r.Applied(one, pod(i), refusal(peering.RefusedQuota, "x"), start)
	}
	r.Applied(one, pod(2000), refusal(peering.RefusedPodSecurity, "privileged"), start)
	if got := r.events(t, start.Add(time.Minute)); !strings.Contains(got, "PodSecurity: 1 pod of one") {
		t.Errorf("privileged pods do not show beside those beyond the contract: %q", got)
	}
}

func TestWhatAConsumerCanMakeItKeepIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig()
	long := strings.Repeat("x", 1<<16)
	for i := range 2000 {
		r.Applied(one, pod(i), refusal(peering.RefusalReason(fmt.Sprint("REASON_", i)), long), start)
	}
	if got := r.events(t, start.Add(time.Minute)); !strings.Contains(got, "Refused: 256 or more pods") || len(got) > 1000 {
		t.Errorf("got %d bytes: %.100s", len(got), got)
	}
	err := testutil.CollectAndCompare(r, strings.NewReader(`
# HELP entente_objects_refused_total Refusals of objects of a consumer, each retry counted.
# TYPE entente_objects_refused_total counter
entente_objects_refused_total{peer="one-id",reason="Refused"} 2000
`))
	if err != nil {
		t.Error(err)
	}
	r.gone = true
	r.report(t.Context(), start.Add(2*time.Minute))
	if n := testutil.CollectAndCount(r); n != 0 {
		t.Errorf("%d series of a consumer that is not known any more", n)
	}
}
