package placementserver

import (
	"encoding/pem"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/placement"
)

func TestThePlacementThatDoesNotWorkIsReported(t *testing.T) {
	t.Parallel()
	hook := httptest.NewTLSServer(&placement.Webhook{Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(hook.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	configured := func(name string, ca []byte) *admissionregistrationv1.MutatingWebhookConfiguration {
		return &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.PlacementName}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: name, ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service: &admissionregistrationv1.ServiceReference{Name: "entente-agent", Namespace: "entente-system"}, CABundle: ca,
			},
		}}}
	}
	const pods = "placement.entente.dev"
	policy := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.PlacementName}}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.PlacementName}}
	forSets := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.PlacementDaemonSetsName}}
	for name, tc := range map[string]struct {
		by      string
		objects []ctrlclient.Object
		want    string
		// keptOff says that it is only about DaemonSets.
		keptOff bool
	}{
		"the policy is there":               {by: "policy/v1", objects: []ctrlclient.Object{policy, binding}},
		"the binding is not":                {by: "policy/v1", objects: []ctrlclient.Object{policy}, want: "MutatingAdmissionPolicyBinding entente-placement does not exist"},
		"it is off":                         {by: v1alpha1.PlacedByNothing},
		"the webhook is not registered":     {by: v1alpha1.PlacedByWebhook, want: "MutatingWebhookConfiguration entente-placement does not exist"},
		"its certificate is of another one": {by: v1alpha1.PlacedByWebhook, objects: []ctrlclient.Object{configured(pods, ca)}, want: "delete Secret entente-placement"},
		"it has no certificate":             {by: v1alpha1.PlacedByWebhook, objects: []ctrlclient.Object{configured(pods, nil)}, want: "no certificate"},
		"the one for DaemonSets has none":   {by: v1alpha1.PlacedByWebhook, objects: []ctrlclient.Object{configured(v1alpha1.PlacementDaemonSetsHook, nil)}, want: "are not kept off", keptOff: true},
		"DaemonSets have no binding":        {by: "policy/v1", objects: []ctrlclient.Object{policy, binding, forSets}, want: "MutatingAdmissionPolicyBinding entente-daemonsets", keptOff: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Check{By: tc.by, Client: fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(tc.objects...).Build(), Address: hook.Listener.Addr().String()}
			p.check(t.Context())
			if got := p.Problems(); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if got := p.Problem(); (got == "") != (tc.want == "" || tc.keptOff) {
				t.Errorf("of pods it says %q", got)
			}
		})
	}
	if got := loopback(":7451"); got != "localhost:7451" {
		t.Errorf("the agent calls itself at %s", got)
	}
}
