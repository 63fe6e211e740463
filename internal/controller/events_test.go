package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
)

func TestRequestEventsFollowItsAcceptance(t *testing.T) {
	t.Parallel()
	with := func(status metav1.ConditionStatus, reason, message string) *v1alpha1.PeeringRequest {
		var r v1alpha1.PeeringRequest
		if reason != "" {
			r.Status.Conditions = []metav1.Condition{store.Condition(v1alpha1.ConditionAccepted, status, reason, message)}
		}
		return &r
	}
	for name, tt := range map[string]struct {
		before, after *v1alpha1.PeeringRequest
		want          []happened
	}{
		"nothing is known":            {with("", "", ""), with("", "", ""), nil},
		"refused":                     {with("", "", ""), with(metav1.ConditionFalse, "PolicyRefused", "too much"), []happened{{"Warning", "PolicyRefused", "Negotiate", "too much"}}},
		"refused with another text":   {with(metav1.ConditionFalse, "PolicyRefused", "a"), with(metav1.ConditionFalse, "PolicyRefused", "b"), nil},
		"refused for another reason":  {with(metav1.ConditionFalse, "PolicyPending", "a"), with(metav1.ConditionFalse, "PolicyRefused", "b"), []happened{{"Warning", "PolicyRefused", "Negotiate", "b"}}},
		"accepted after it was asked": {with(metav1.ConditionFalse, "PolicyPending", "a"), with(metav1.ConditionTrue, "Signed", "yes"), []happened{{"Normal", "Signed", "Negotiate", "yes"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, requestEvents(tt.before, tt.after)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestContractEventsFollowItsPhase(t *testing.T) {
	t.Parallel()
	in := func(phase, message string) *v1alpha1.Contract {
		c := &v1alpha1.Contract{Spec: v1alpha1.ContractSpec{
			Resources: amountsOf("cpu", "500m", "memory", "1Gi"), NotAfter: metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
		}}
		c.Status.Phase, c.Status.Message = phase, message
		return c
	}
	for name, tt := range map[string]struct {
		before, after *v1alpha1.Contract
		want          []happened
	}{
		"signed":       {in("", ""), in("Active", ""), []happened{{"Normal", "InForce", "Sign", "signed by both: 500m CPU, 1Gi until 2026-03-01 12:00 UTC"}}},
		"nothing new":  {in("Active", ""), in("Active", "x"), nil},
		"it drains":    {in("Active", ""), in("Draining", "the peer ended it"), []happened{{"Warning", "Draining", "End", "the peer ended it"}}},
		"it is closed": {in("Draining", "a"), in("Closed", "b"), []happened{{"Normal", "Closed", "End", "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, contractEvents(tt.before, tt.after)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// recorded keeps events as text.
type recorded struct{ all []string }

func (r *recorded) Eventf(_, _ runtime.Object, kind, reason, action, note string, args ...any) {
	r.all = append(r.all, strings.Join([]string{kind, reason, action, fmt.Sprintf(note, args...)}, " "))
}

func TestReconcilersRecordEvents(t *testing.T) {
	t.Parallel()
	b := newRequestsBench(t, requestFor(nil), map[string]*seller{"peer": {price: eur(t, "cpu", "0.1")}})
	var heard recorded
	b.Requests.Events = &heard
	b.look(t)
	b.look(t)
	if len(heard.all) != 1 || !strings.HasPrefix(heard.all[0], "Normal ") {
		t.Errorf("events of the request: %q, want one, that it was accepted", heard.all)
	}
}
