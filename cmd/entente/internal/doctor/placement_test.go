package doctor

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
)

// admission is what an API server has of the API group of admission, by path.
type admission map[string]any

// serve returns a client of an API server that has it, and refuses the objects that are nil.
func (a admission) serve(t *testing.T) rest.Interface {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		o, is := a[strings.TrimPrefix(r.URL.Path, "/apis/admissionregistration.k8s.io/")]
		if o == nil {
			o = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
			if is {
				o = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "forbidden"}
			}
			w.WriteHeader(int(o.(*metav1.Status).Code))
		}
		_ = json.NewEncoder(w).Encode(o)
	}))
	t.Cleanup(server.Close)
	clients, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return clients.RESTClient()
}

// hooks is the configuration of the chart's webhooks with an authority.
func hooks(authority []byte) *admissionregistrationv1.MutatingWebhookConfiguration {
	to := admissionregistrationv1.WebhookClientConfig{
		Service: &admissionregistrationv1.ServiceReference{Name: "entente-agent", Namespace: "entente-system", Port: ptr.To[int32](7451)}, CABundle: authority,
	}
	return &admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{
		{Name: "placement.entente.dev", ClientConfig: to}, {Name: v1alpha1.PlacementDaemonSetsHook, ClientConfig: to},
	}}
}

// certified makes an authority, and a certificate of it for a host that ends when it is told to.
func certified(t *testing.T, host string, ends time.Time) (authority []byte, own tls.Certificate) {
	t.Helper()
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: v1alpha1.PlacementName}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, root, root, keys[0].Public(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: host}, NotBefore: root.NotBefore, NotAfter: ends, DNSNames: []string{host}}
	signed, err := x509.CreateCertificate(rand.Reader, leaf, root, keys[1].Public(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: keys[1]}
}

// agentWith listens with a certificate, and returns how to reach it as an agent's pod.
func agentWith(t *testing.T, own tls.Certificate) dialer {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = conn.(*tls.Conn).Handshake()
				_ = conn.Close()
			}()
		}
	}()
	return func(ctx context.Context, namespace string, port int) (net.Conn, error) {
		if namespace != "entente-system" || port != 7451 {
			return nil, fmt.Errorf("the agent is not in %s at port %d", namespace, port)
		}
		return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	}
}

func TestDoctorFindsWhatKeepsPodsFromBeingPlaced(t *testing.T) {
	t.Parallel()
	const host = "entente-agent.entente-system.svc"
	authority, own := certified(t, host, time.Now().Add(time.Hour))
	other, _ := certified(t, host, time.Now().Add(time.Hour))
	ofExpired, expired := certified(t, host, time.Now().Add(-time.Hour))
	ofElsewhere, elsewhere := certified(t, "entente-agent.elsewhere.svc", time.Now().Add(time.Hour))
	answers := agentWith(t, own)
	failing := func(err error) dialer {
		return func(context.Context, string, int) (net.Conn, error) { return nil, err }
	}
	const warns, policy, binding = "v1/validatingadmissionpolicies/entente-placement", "/mutatingadmissionpolicies/", "/mutatingadmissionpolicybindings/"
	const configuration = "v1/mutatingwebhookconfigurations/entente-placement"
	there := map[string]string{}
	for name, tc := range map[string]struct {
		has  admission
		dial dialer
		by   string
		want string // severity and reason of each finding
		text string
	}{
		"placement is off":   {has: admission{}, by: "off"},
		"a policy":           {has: admission{warns: there, "v1" + policy + v1alpha1.PlacementName: there, "v1" + binding + v1alpha1.PlacementName: there}, by: "policy/v1"},
		"a policy of a beta": {has: admission{warns: there, "v1beta1" + policy + v1alpha1.PlacementName: there, "v1beta1" + binding + v1alpha1.PlacementName: there}, by: "policy/v1beta1"},
		"a policy without a binding": {
			has: admission{warns: there, "v1" + policy + v1alpha1.PlacementName: there}, by: "policy/v1", want: "Error PodsNotPlaced", text: "MutatingAdmissionPolicyBinding entente-placement does not exist",
		},
		"DaemonSets' policy without a binding": {
			has: admission{warns: there, "v1" + policy + v1alpha1.PlacementName: there, "v1" + binding + v1alpha1.PlacementName: there, "v1" + policy + v1alpha1.PlacementDaemonSetsName: there}, by: "policy/v1",
			want: "Warning DaemonSetsNotKeptOff", text: "entente-daemonsets does not exist",
		},
		"neither policy nor webhook": {has: admission{warns: there}, want: "Error PodsNotPlaced", text: "upgrade Entente's chart"},
		"a webhook that answers":     {has: admission{warns: there, configuration: hooks(authority)}, dial: answers, by: "webhook"},
		"no pod of the agent":        {has: admission{warns: there, configuration: hooks(authority)}, dial: failing(fmt.Errorf("%w in namespace x", client.ErrNoAgent)), by: "webhook", want: "Error PodsNotPlaced, Warning DaemonSetsNotKeptOff", text: "the agent does not answer"},
		"a certificate of another":   {has: admission{warns: there, configuration: hooks(other)}, dial: answers, by: "webhook", want: "Error PodsNotPlaced, Warning DaemonSetsNotKeptOff", text: "its caBundle does not go with"},
		"a certificate for another":  {has: admission{warns: there, configuration: hooks(ofElsewhere)}, dial: agentWith(t, elsewhere), by: "webhook", want: "Error PodsNotPlaced, Warning DaemonSetsNotKeptOff", text: "its caBundle does not go with"},
		"a certificate that expired": {has: admission{warns: there, configuration: hooks(ofExpired)}, dial: agentWith(t, expired), by: "webhook", want: "Error PodsNotPlaced, Warning DaemonSetsNotKeptOff", text: "certificate has expired"},
		"no certificate":             {has: admission{warns: there, configuration: hooks(nil)}, dial: answers, by: "webhook", want: "Error PodsNotPlaced, Warning DaemonSetsNotKeptOff", text: "delete Secret entente-placement"},
		"a user who cannot forward":  {has: admission{warns: there, configuration: hooks(authority)}, dial: failing(apierrors.NewForbidden(corev1.Resource("pods/portforward"), "a", errors.New("no"))), by: "webhook", want: "Info PlacementNotChecked", text: "entente-cli"},
		"a proxy that cannot":        {has: admission{warns: there, configuration: hooks(authority)}, dial: failing(errors.New("upgrade refused")), by: "webhook", want: "Info PlacementNotChecked", text: "entente info"},
		"a user who cannot read":     {has: admission{warns: nil}, want: "Info PlacementNotChecked", text: "entente-view"},
		"a user who reads only some": {has: admission{warns: there, configuration: nil}, want: "Info PlacementNotChecked", text: "entente-view"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := placed(t.Context(), tc.has.serve(t), tc.dial)
			var got, texts []string
			for _, f := range placementFindings(p, time.Now()) {
				got, texts = append(got, f.Severity+" "+f.Reason), append(texts, f.Message+": "+f.Remedy)
			}
			if p.By != tc.by || strings.Join(got, ", ") != tc.want || !strings.Contains(strings.Join(texts, "\n"), tc.text) {
				t.Errorf("by %q, found %q\n%s", p.By, got, strings.Join(texts, "\n"))
			}
		})
	}
}

// Without the right to call the webhook, it still shows that its authority has expired.
func TestAnExpiredAuthorityShowsWithoutAProbe(t *testing.T) {
	t.Parallel()
	h := Hook{Name: "placement.entente.dev", Expires: epoch, Unprobed: errors.New("forbidden")}
	found := placementFindings(Placed{By: v1alpha1.PlacedByWebhook, Hooks: []Hook{h}}, epoch.Add(time.Hour))
	if len(found) != 1 || found[0].Reason != reasonNotPlaced || !strings.Contains(found[0].Message, "2026-03-01T12:00:00Z") {
		t.Errorf("found %+v", found)
	}
}

func TestEachReasonOfPlacementIsExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{reasonNotPlaced, reasonNotKeptOff, reasonNotChecked} {
		if !bytes.Contains(page, []byte("\n### `"+reason+"`\n")) {
			t.Errorf("docs/troubleshooting.md does not explain %s", reason)
		}
	}
}
