package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/peering"
)

// The peering that is made in all ways, as each way writes it. Home consumes; a
// token that abroad made establishes the trust.
const (
	// thePolicy is abroad's, which only a manifest can create.
	thePolicy = `
apiVersion: entente.dev/v1alpha1
kind: PeeringPolicy
metadata: {name: aa-five-ways}
spec:
  clusterIDs: [HOMEID]
  accept: Automatic
  limits: {percentOfFree: 100, resources: {cpu: "4", memory: 8Gi, pods: "20"}}
  price: {currency: EUR, perHour: {cpu: "0.03", memory: "0.004"}}
  notice: 30m
  statementPeriod: 15m
  contractDuration: 72h
  podSecurity: restricted
  runtimeClasses: [control-five-ways]
  nodeLabels: {example.org/zone: north}
`
	theSecret = `
apiVersion: v1
kind: Secret
metadata: {namespace: entente-system, name: five-ways}
stringData: {token: "TOKEN"}
`
	theCluster = `
apiVersion: entente.dev/v1alpha1
kind: ForeignCluster
metadata: {name: abroad}
spec:
  joinToken: {name: five-ways}
`
	theRequest = `
apiVersion: entente.dev/v1alpha1
kind: PeeringRequest
metadata: {name: abroad}
spec:
  foreignCluster: abroad
  resources: {cpu: "2", memory: 4Gi, pods: "10"}
  duration: 48h
  priceCeiling: {currency: EUR, amount: "0.5"}
  nodeSelector: {kubernetes.io/arch: amd64}
  runtimeClasses: [control-five-ways]
  network: None
`
	// theJSON is the ask as REST takes it, and grpcurl: both know the names in
	// lowerCamelCase.
	theJSON = `{
  "resources": {"amounts": {"cpu": "2", "memory": "4Gi", "pods": "10"}}, "duration": "172800s",
  "priceCeiling": {"currency": "EUR", "amount": "0.5"}, "nodeSelector": {"kubernetes.io/arch": "amd64"},
  "runtimeClasses": ["control-five-ways"], "noNetwork": true`
)

// way is one of the ways in which people peer.
type way struct {
	name string
	// peer makes all that the peering takes, but for the policy.
	peer func(ctx context.Context, t *testing.T, f *fiveWays) error
	// envelope reads the signed contract.
	envelope func(ctx context.Context, f *fiveWays, contract string) (string, error)
}

// fiveWays has the state that all ways share.
type fiveWays struct {
	home, abroad *cluster
	// bearer is the token of an administrator of each cluster's own, with the
	// roles that the chart brings, by the cluster's name.
	bearer map[string]string
	// kubeconfig is theirs, for the CLI, and ca the agent's authority.
	kubeconfig, ca map[string]string
}

func ways() []way {
	return []way{
		{"manifests, the provider's first", func(ctx context.Context, t *testing.T, f *fiveWays) error {
			return f.applyAll(ctx, t, thePolicy, theSecret, theCluster, theRequest)
		}, envelopeByManifest},
		{"manifests, the provider's last and the ask first", func(ctx context.Context, t *testing.T, f *fiveWays) error {
			if err := f.abroad.client.Delete(ctx, f.policy(t)); err != nil {
				return err
			}
			return f.applyAll(ctx, t, theRequest, theSecret, theCluster, thePolicy)
		}, envelopeByManifest},
		{"grpcurl", peerByGrpcurl, func(ctx context.Context, f *fiveWays, contract string) (string, error) {
			out, err := f.grpcurl(ctx, f.home, "GetContract", `{"name": "contracts/`+contract+`"}`)
			return envelopeOf(out, err)
		}},
		{"Go", peerByGo, func(ctx context.Context, f *fiveWays, contract string) (string, error) {
			admin, err := f.home.admin(ctx, f.bearer[homeName])
			if err != nil {
				return "", err
			}
			defer admin.Close()
			resp, err := admin.GetContract(ctx, &ententev1.AdminServiceGetContractRequest{Name: "contracts/" + contract})
			return resp.GetContract().GetEnvelope(), err
		}},
		{"REST", peerByREST, func(ctx context.Context, f *fiveWays, contract string) (string, error) {
			out, err := f.rest(ctx, f.home, http.MethodGet, "/v1/contracts/"+contract, "")
			return envelopeOf(out, err)
		}},
		{"the CLI", peerByCLI, func(ctx context.Context, f *fiveWays, contract string) (string, error) {
			return f.cli(ctx, f.home, "", "contract", "show", contract, "-o", "dsse")
		}},
	}
}

// TestFiveWaysMakeTheSamePeering makes one peering by manifests, by grpcurl, by the Go SDK, by REST and by the CLI,
// each from nothing, and compares what was signed byte for byte, after blanking exactly the fields that have to differ:
// the contract's ID, the request's ID, and the two times, whose difference is kept. The remaining objects are compared,
// too.
func TestFiveWaysMakeTheSamePeering(t *testing.T) {
	home, abroad := agents(t)
	f := newFiveWays(t, home, abroad)
	var first struct {
		way, terms, objects string
		contracts           map[string]bool
	}
	first.contracts = map[string]bool{}
	for _, w := range ways() {
		ok := t.Run(w.name, func(t *testing.T) {
			ctx := t.Context()
			begin := time.Now()
			if err := w.peer(ctx, t, f); err != nil {
				t.Fatal(err)
			}
			name, err := contract(ctx, home, abroad, later)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("peered after %.1fs", time.Since(begin).Seconds())
			if first.contracts[name] {
				t.Errorf("contract %s is one of before", name)
			}
			first.contracts[name] = true
			f.sameEnvelope(t, w, name)
			terms, objects := f.terms(t, name), f.objects(t)
			if first.way == "" {
				first.way, first.terms, first.objects = w.name, terms, objects
				t.Logf("all have to be signed as\n%s", terms)
			}
			if terms != first.terms {
				t.Errorf("the signed terms differ (-%s +%s):\n%s", first.way, w.name, gocmp.Diff(first.terms, terms))
			}
			if objects != first.objects {
				t.Errorf("the objects differ (-%s +%s):\n%s", first.way, w.name, gocmp.Diff(first.objects, objects))
			}
			if strings.HasPrefix(w.name, "manifests") {
				f.applyAgain(t, name)
			}
			if err := part(ctx, home, abroad, later); err != nil {
				t.Fatal(err)
			}
		})
		if !ok {
			return // the next would meet what this one left
		}
	}
}

// newFiveWays makes what administrators have who peer: rights, and for the CLI
// kubeconfigs and a pod of the agent to be found.
func newFiveWays(t *testing.T, home, abroad *cluster) *fiveWays {
	t.Helper()
	ctx := t.Context()
	f := &fiveWays{home: home, abroad: abroad, bearer: map[string]string{}, kubeconfig: map[string]string{}, ca: map[string]string{}}
	// The chart's default would be offered before the policy exists.
	restore := setDefaultPolicy(t, abroad, v1alpha1.AcceptNever)
	t.Cleanup(restore)
	t.Cleanup(func() {
		remove(t, abroad, f.policy(t))
		remove(t, home, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "five-ways"}})
	})
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "control-five-ways"}, Handler: "control"}
	if err := abroad.client.Create(ctx, class); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, abroad, class) })
	for _, c := range []*cluster{home, abroad} {
		var err error
		if f.bearer[c.name], err = c.user(ctx, "control-five-ways", "entente-admin"); err != nil {
			t.Fatal(err)
		}
		if err := c.client.Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "control-five-ways"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "entente-cli"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: "control-five-ways"}},
		}); ctrlclient.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
		cm, err := c.kube.CoreV1().ConfigMaps(systemNamespace).Get(ctx, client.CAConfigMap, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f.ca[c.name] = filepath.Join(t.TempDir(), "ca.crt")
		if err := os.WriteFile(f.ca[c.name], []byte(cm.Data[client.CAKey]), 0o600); err != nil {
			t.Fatal(err)
		}
		f.kubeconfig[c.name] = kubeconfigThroughFront(t, c, f.bearer[c.name])
	}
	return f
}

// setDefaultPolicy changes whether the chart's policy offers anything.
func setDefaultPolicy(t *testing.T, c *cluster, accept v1alpha1.Acceptance) (restore func()) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	set := func(accept v1alpha1.Acceptance) (before v1alpha1.Acceptance) {
		var p v1alpha1.PeeringPolicy
		if err := c.get(ctx, "entente-default", &p); err != nil {
			t.Fatal(err)
		}
		before, p.Spec.Accept = p.Spec.Accept, accept
		if err := c.client.Update(ctx, &p); err != nil {
			t.Fatal(err)
		}
		return before
	}
	before := set(accept)
	return func() { set(before) }
}

// sameEnvelope checks that both sides hold one envelope, that it verifies, and
// that the way shows that one, byte for byte.
func (f *fiveWays) sameEnvelope(t *testing.T, w way, name string) {
	t.Helper()
	var theirs v1alpha1.Contract
	if err := f.abroad.get(t.Context(), name, &theirs); err != nil {
		t.Fatal(err)
	}
	shown, err := w.envelope(t.Context(), f, name)
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSuffix(shown, "\n") != theirs.Spec.Envelope {
		t.Errorf("it is shown as\n%s\nand the provider holds\n%s", shown, theirs.Spec.Envelope)
	}
}

// terms returns the canonical payload of a contract, with blanks where every
// contract differs.
func (f *fiveWays) terms(t *testing.T, name string) string {
	t.Helper()
	var held v1alpha1.Contract
	if err := f.home.get(t.Context(), name, &held); err != nil {
		t.Fatal(err)
	}
	envelope, err := peering.ParseEnvelope([]byte(held.Spec.Envelope))
	if err != nil {
		t.Fatal(err)
	}
	terms, err := envelope.Verify()
	if err != nil {
		t.Fatal(err)
	}
	if terms.ContractID != name || terms.Revision != 1 {
		t.Errorf("it is revision %d of %s", terms.Revision, terms.ContractID)
	}
	if age := time.Since(terms.NotBefore); age < 0 || age > later+2*time.Minute {
		t.Errorf("it begins at %s", terms.NotBefore)
	}
	life := terms.NotAfter.Sub(terms.NotBefore)
	terms.ContractID, terms.RequestID = "contract", "request"
	terms.NotBefore = time.Unix(1, 0).UTC()
	terms.NotAfter = terms.NotBefore.Add(life)
	blank, err := terms.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return string(blank)
}

// objects returns the specs of the objects that a way left at home, without what only one way
// needs: the token's Secret by its name.
func (f *fiveWays) objects(t *testing.T) string {
	t.Helper()
	var fc v1alpha1.ForeignCluster
	var request v1alpha1.PeeringRequest
	if err := errors.Join(f.home.get(t.Context(), abroadName, &fc), f.home.get(t.Context(), requestName, &request)); err != nil {
		t.Fatal(err)
	}
	fc.Spec.JoinToken = nil
	text, err := json.MarshalIndent([]any{fc.Spec, request.Spec}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// --- Manifests

func manifest(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func (f *fiveWays) policy(t *testing.T) *unstructured.Unstructured {
	return f.manifest(t, thePolicy, "")
}

// manifest reads a manifest for this run's token and cluster.
func (f *fiveWays) manifest(t *testing.T, text, token string) *unstructured.Unstructured {
	t.Helper()
	party, err := partyOf(context.WithoutCancel(t.Context()), f.home)
	if err != nil {
		t.Fatal(err)
	}
	return manifest(t, strings.NewReplacer("TOKEN", token, "HOMEID", string(party.ID)).Replace(text))
}

// where is the cluster to which a manifest is applied.
func (f *fiveWays) where(o *unstructured.Unstructured) *cluster {
	if o.GetKind() == "PeeringPolicy" {
		return f.abroad
	}
	return f.home
}

// apply does as `kubectl apply --server-side` would.
func (f *fiveWays) apply(ctx context.Context, o *unstructured.Unstructured) error {
	return f.where(o).client.Apply(ctx, ctrlclient.ApplyConfigurationFromUnstructured(o.DeepCopy()), ctrlclient.FieldOwner("kubectl"))
}

// applyAll applies manifests in this order, each when the one before had its
// effect, such as it is.
func (f *fiveWays) applyAll(ctx context.Context, t *testing.T, texts ...string) error {
	token, err := createToken(ctx, f.abroad) // the one thing that no manifest makes
	if err != nil {
		return err
	}
	for _, text := range texts {
		o := f.manifest(t, text, token)
		if err := f.apply(ctx, o); err != nil {
			return fmt.Errorf("apply %s: %w", o.GetKind(), err)
		}
		if err := f.seen(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// seen waits until the agent said something of an object that it gives a status.
func (f *fiveWays) seen(ctx context.Context, o *unstructured.Unstructured) error {
	if o.GetKind() != "ForeignCluster" && o.GetKind() != "PeeringRequest" {
		return nil
	}
	return eventually.Is(ctx, soon, o.GetKind()+" to be looked at", func(ctx context.Context) error {
		now := o.DeepCopy()
		if err := f.where(o).get(ctx, o.GetName(), now); err != nil {
			return err
		}
		if conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions"); len(conditions) == 0 {
			return errors.New("it has no conditions")
		}
		return nil
	})
}

func envelopeByManifest(ctx context.Context, f *fiveWays, contract string) (string, error) {
	var held v1alpha1.Contract
	err := f.home.get(ctx, contract, &held)
	return held.Spec.Envelope, err
}

// applyAgain applies all manifests again, as GitOps does every few minutes, and checks that nothing
// changes.
func (f *fiveWays) applyAgain(t *testing.T, name string) {
	t.Helper()
	ctx := t.Context()
	state := func() map[string]string {
		out := map[string]string{}
		for _, c := range []*cluster{f.home, f.abroad} {
			for _, l := range []ctrlclient.ObjectList{
				&v1alpha1.ForeignClusterList{}, &v1alpha1.PeeringRequestList{}, &v1alpha1.ContractList{}, &v1alpha1.PeeringPolicyList{},
			} {
				if err := c.client.List(ctx, l); err != nil {
					t.Fatal(err)
				}
				items, err := meta.ExtractList(l)
				if err != nil {
					t.Fatal(err)
				}
				for _, item := range items {
					o := item.(ctrlclient.Object)
					out[fmt.Sprintf("%s %T %s", c.name, o, o.GetName())] = fmt.Sprintf("%s, generation %d", o.GetUID(), o.GetGeneration())
				}
			}
			var held v1alpha1.Contract
			if err := c.get(ctx, name, &held); err != nil {
				t.Fatal(err)
			}
			out[c.name+" contract"] = fmt.Sprintf("%s, node %q, %s", held.Status.Phase, held.Status.Node, held.Spec.Envelope)
		}
		return out
	}
	before := state()
	var secret corev1.Secret
	secret.Namespace = systemNamespace
	if err := f.home.get(ctx, "five-ways", &secret); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{thePolicy, theSecret, theCluster, theRequest} {
		// The token is spent; Git still has it.
		o := f.manifest(t, text, string(secret.Data["token"]))
		if err := f.apply(ctx, o); err != nil {
			t.Fatalf("apply %s again: %v", o.GetKind(), err)
		}
	}
	// What should not happen would happen at once.
	time.Sleep(1500 * time.Millisecond)
	if diff := gocmp.Diff(before, state()); diff != "" {
		t.Errorf("applied again, something changed (-before +after):\n%s", diff)
	}
	for _, c := range []*cluster{f.home, f.abroad} {
		if err := connected(ctx, c, soon); err != nil {
			t.Error(err)
		}
	}
}

// --- Go

func peerByGo(ctx context.Context, _ *testing.T, f *fiveWays) error {
	there, err := f.abroad.admin(ctx, f.bearer[abroadName])
	if err != nil {
		return err
	}
	defer there.Close()
	here, err := f.home.admin(ctx, f.bearer[homeName])
	if err != nil {
		return err
	}
	defer here.Close()
	made, err := there.CreateToken(ctx, &ententev1.CreateTokenRequest{})
	if err != nil {
		return err
	}
	if err := world.secrets.Token(made.GetToken()); err != nil {
		return err
	}
	if _, err := here.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: made.GetToken()}); err != nil {
		return err
	}
	_, err = here.CreatePeering(ctx, &ententev1.CreatePeeringRequest{
		Peer:           "peers/" + abroadName,
		Resources:      &ententev1.ResourceList{Amounts: map[string]string{"cpu": "2", "memory": "4Gi", "pods": "10"}},
		Duration:       durationpb.New(48 * time.Hour),
		PriceCeiling:   &ententev1.Money{Currency: "EUR", Amount: "0.5"},
		NodeSelector:   map[string]string{"kubernetes.io/arch": "amd64"},
		RuntimeClasses: []string{"control-five-ways"},
		NoNetwork:      true,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, later)
	defer cancel()
	_, err = here.WaitForPeering(ctx, "peerings/"+requestName)
	return err
}

// --- grpcurl

// grpcurl calls a method of the AdminService. The bearer token is in its
// environment: what is in its arguments everybody on the machine can read.
func (f *fiveWays) grpcurl(ctx context.Context, c *cluster, method, request string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	binary := cmp.Or(os.Getenv("ENTENTE_GRPCURL"), "../../.build/bin/grpcurl")
	cmd := exec.CommandContext(ctx, binary, "-cacert", f.ca[c.name], "-authority", client.AgentService+"."+systemNamespace+".svc",
		"-expand-headers", "-H", "authorization: Bearer ${BEARER}", "-d", "@", c.adminAddress, "entente.v1.AdminService/"+method)
	cmd.Env = append(os.Environ(), "BEARER="+f.bearer[c.name])
	cmd.Stdin = strings.NewReader(request)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("grpcurl %s (`make .build/bin/grpcurl` builds it): %w\n%s", method, err, &stderr)
	}
	return out, nil
}

func peerByGrpcurl(ctx context.Context, _ *testing.T, f *fiveWays) error {
	out, err := f.grpcurl(ctx, f.abroad, "CreateToken", "{}")
	if err != nil {
		return err
	}
	token, err := tokenOf(out)
	if err != nil {
		return err
	}
	if _, err := f.grpcurl(ctx, f.home, "JoinPeer", fmt.Sprintf(`{"token": %q}`, token)); err != nil {
		return err
	}
	_, err = f.grpcurl(ctx, f.home, "CreatePeering", theJSON+`, "peer": "peers/abroad"}`)
	return err
}

// tokenOf reads the answer of CreateToken, as JSON.
func tokenOf(answer []byte) (string, error) {
	var made struct{ Token string }
	if err := json.Unmarshal(answer, &made); err != nil {
		return "", err
	}
	return made.Token, world.secrets.Token(made.Token)
}

// envelopeOf reads the answer of GetContract, as JSON.
func envelopeOf(answer []byte, err error) (string, error) {
	var got struct{ Contract struct{ Envelope string } }
	if err == nil {
		err = json.Unmarshal(answer, &got)
	}
	return got.Contract.Envelope, err
}

// --- REST

// rest does what curl does, with the name in the agent's certificate.
func (f *fiveWays) rest(ctx context.Context, c *cluster, method, path, body string) ([]byte, error) {
	secure, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: f.ca[c.name], ServerName: client.AgentService + "." + systemNamespace + ".svc"}})
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "https://"+c.adminAddress+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+f.bearer[c.name])
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: transport, Timeout: soon}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s answers %d: %s", method, path, resp.StatusCode, out)
	}
	return out, err
}

func peerByREST(ctx context.Context, _ *testing.T, f *fiveWays) error {
	out, err := f.rest(ctx, f.abroad, http.MethodPost, "/v1/tokens", "{}")
	if err != nil {
		return err
	}
	token, err := tokenOf(out)
	if err != nil {
		return err
	}
	if _, err := f.rest(ctx, f.home, http.MethodPost, "/v1/peers:join", fmt.Sprintf(`{"token": %q}`, token)); err != nil {
		return err
	}
	_, err = f.rest(ctx, f.home, http.MethodPost, "/v1/peers/abroad/peerings", theJSON+"}")
	return err
}

// --- The CLI

// cli runs the CLI, with a kubeconfig and nothing else, and keeps all that it
// printed to look through it for secrets: all but the token that `token create`
// prints to standard output, once, because that is what it is for.
func (f *fiveWays) cli(ctx context.Context, c *cluster, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, later+soon)
	defer cancel()
	cmd := exec.CommandContext(ctx, world.cli, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+f.kubeconfig[c.name], "NO_COLOR=1")
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	printed := stdout.String()
	if token := strings.TrimSpace(printed); err == nil && strings.Join(args, " ") == "token create" {
		printed = strings.Replace(printed, token, "(the token)", 1)
		err = world.secrets.Token(token)
	}
	kept := fmt.Sprintf("entente %s\n%s\n%s\n", strings.Join(args, " "), printed, &stderr)
	if err := keepOutput(kept); err != nil {
		return "", err
	}
	if err != nil {
		return stdout.String(), fmt.Errorf("%w: %s", err, kept)
	}
	return stdout.String(), nil
}

// keepOutput adds to what is looked through for secrets at the end.
func keepOutput(text string) error {
	name := filepath.Join(world.dir, "cli.log")
	out, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = out.WriteString(text)
	return errors.Join(err, out.Close())
}

func peerByCLI(ctx context.Context, _ *testing.T, f *fiveWays) error {
	token, err := f.cli(ctx, f.abroad, "", "token", "create")
	if err != nil {
		return err
	}
	if _, err := f.cli(ctx, f.home, token, "join", "-"); err != nil {
		return err
	}
	_, err = f.cli(ctx, f.home, "", "peer", abroadName, "--resources", "cpu=2,memory=4Gi,pods=10", "--duration", "48h",
		"--price-ceiling", "EUR 0.5", "--node-selector", "kubernetes.io/arch=amd64", "--runtime-class", "control-five-ways", "--no-network")
	return err
}

// kubeconfigThroughFront writes a kubeconfig for the CLI. The CLI reaches the
// agent by forwarding a port to its pod, which takes a kubelet, and these
// clusters have none: so its API server is a front that passes everything on
// unchanged to the real one but for that, which it does itself. The agent's pod
// is a real object, which a node that only pretends made ready.
func kubeconfigThroughFront(t *testing.T, c *cluster, bearer string) string {
	t.Helper()
	ctx := t.Context()
	p := pod(systemNamespace, "entente-agent-"+c.name, func(p *corev1.Pod) { // as in the process' environment
		p.Labels = map[string]string{"app.kubernetes.io/name": "entente", "app.kubernetes.io/component": "agent", v1alpha1.LabelLeader: "true"}
	})
	err := eventually.Is(ctx, soon, "the agent's pod to be made", func(ctx context.Context) error { return c.client.Create(ctx, p.DeepCopy()) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, c, p) })
	if err := runs(ctx, c, p.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(c.config.Host)
	if err != nil {
		t.Fatal(err)
	}
	// The caller's own credentials go through; the front has none.
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(c.config))
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
	}
	front := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/pods/"+p.Name+"/portforward") {
			forwardPort(w, r, c.adminAddress)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"front": {Server: front.URL, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"me": {Token: bearer}},
		Contexts:       map[string]*clientcmdapi.Context{"me": {Cluster: "front", AuthInfo: "me"}},
		CurrentContext: "me",
	}, file)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// forwardPort forwards one connection to an address, as a kubelet does to a pod.
func forwardPort(w http.ResponseWriter, r *http.Request, address string) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "SPDY/3.1") {
		http.Error(w, "the front knows SPDY only", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	var data httpstream.Stream
	for range 2 { // the other one is for errors
		select {
		case s := <-streams:
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
				data = s
			}
		case <-conn.CloseChan():
			return
		}
	}
	target, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", address)
	if err != nil || data == nil {
		return
	}
	defer target.Close()
	go func() { _, _ = io.Copy(target, data) }()
	go func() { _, _ = io.Copy(data, target); _ = conn.Close() }()
	<-conn.CloseChan()
}
