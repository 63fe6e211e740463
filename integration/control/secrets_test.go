package control

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// learnSecrets registers what to look for in the logs: the credentials of a cluster, and each
// Secret that its agent ever has. Tokens and users' bearer tokens are added where tests make them.
func learnSecrets(ctx context.Context, c *cluster) error {
	config, err := clientcmd.LoadFromFile(c.kubeconfig)
	if err != nil {
		return err
	}
	world.secrets.Kubeconfig("the agent of "+c.name, config)
	world.secrets.REST("the administrator of "+c.name, c.config)
	world.logs.add(c.log)
	_, err = world.secrets.Watch(ctx, c.client, c.name, systemNamespace)
	return err
}

// secretsInLogs looks through all that agents and commands wrote in this run, for
// every secret that was used, and returns 1 if there is one. It writes them to .build/secrets,
// too: what runs failed tests again finds none that did.
func secretsInLogs() int {
	found, size, err := world.secrets.FindInFiles(world.logs.all()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if testing.Verbose() {
		fmt.Fprintf(os.Stderr, "looked for %d secrets in %d bytes of %v\n", world.secrets.Count(), size, world.logs.all())
	}
	for i, f := range found {
		if i == 20 {
			fmt.Fprintf(os.Stderr, "… and %d more\n", len(found)-i)
			break
		}
		fmt.Fprintf(os.Stderr, "FAIL: a secret was written: %s\n", f)
	}
	if len(found) == 0 {
		return 0
	}
	if root := os.Getenv("ENTENTE_ROOT"); root != "" {
		if err := os.WriteFile(filepath.Join(root, ".build", "secrets"), fmt.Appendln(nil, found), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return 1
}

// leaked looks through the logs as they are now.
func leaked(t *testing.T) {
	t.Helper()
	found, size, err := world.secrets.FindInFiles(world.logs.all()...)
	if err != nil || size == 0 {
		t.Errorf("looked at %d bytes, %v", size, err)
	}
	for _, f := range found {
		t.Errorf("a secret was written: %s", f)
	}
}

// TestErrorsNeverRepeatASecret uses secrets where they do not belong, or invalid ones, in all ways
// in which people do, and checks the output of agents and CLI. TestMain checks successful uses
// after all tests.
func TestErrorsNeverRepeatASecret(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	leaked(t) // earlier output is not this test's

	token, err := createToken(ctx, abroad)
	if err != nil {
		t.Fatal(err)
	}
	own, err := createToken(ctx, home)
	if err != nil {
		t.Fatal(err)
	}
	revoked, err := createToken(ctx, abroad)
	if err != nil {
		t.Fatal(err)
	}
	bearer, err := home.user(ctx, "control-clumsy", "entente-admin")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := home.admin(ctx, bearer)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	flipped := []byte(token)
	flipped[len(flipped)/2] ^= 1
	cut := token[:len(token)-4]
	for name, call := range map[string]func() error{
		"a token that is cut off": func() error {
			_, err := admin.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: cut})
			return err
		},
		"a token that is damaged": func() error {
			_, err := admin.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: string(flipped)})
			return err
		},
		"a token of the cluster itself": func() error {
			_, err := admin.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: own})
			return err
		},
		"a token where the peer's name belongs": func() error {
			_, err := admin.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: "ent1.x", Name: token})
			return err
		},
		"a token where a peer's name belongs": func() error {
			_, err := admin.GetPeer(ctx, &ententev1.GetPeerRequest{Name: "peers/" + token})
			return err
		},
		"a token where its ID belongs": func() error {
			_, err := admin.RevokeToken(ctx, &ententev1.RevokeTokenRequest{Name: "tokens/" + token})
			return err
		},
		"a token where an endpoint belongs": func() error {
			_, err := admin.IntroducePeer(ctx, &ententev1.IntroducePeerRequest{Endpoint: token})
			return err
		},
		"a token where a code belongs": func() error {
			_, err := admin.ApprovePeer(ctx, &ententev1.ApprovePeerRequest{Name: "peers/nobody", Code: token})
			return err
		},
		"a token where a request ID belongs": func() error {
			_, err := admin.CreatePeering(ctx, &ententev1.CreatePeeringRequest{Peer: "peers/nobody", RequestId: token})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := call()
			if err == nil {
				t.Fatal("it was taken")
			}
			printed(t, client.Explain(err))
			printed(t, err.Error())
		})
	}
	t.Run("over REST", func(t *testing.T) {
		for _, path := range []string{"/v1/peers/" + token, "/v1/tokens/" + token, "/v1/peers?pageToken=" + token, "/" + token} {
			status, body, err := askREST(ctx, home, path, bearer)
			if err != nil || status < http.StatusBadRequest {
				t.Errorf("it answers %d %v", status, err)
			}
			printed(t, string(body))
		}
		// A bearer token that is cut, and a token in the place of one.
		for _, wrong := range []string{bearer[:len(bearer)-20], token} {
			status, body, err := askREST(ctx, home, "/v1/info", wrong)
			if err != nil || status != http.StatusUnauthorized {
				t.Errorf("it answers %d %v", status, err)
			}
			printed(t, string(body))
		}
	})
	t.Run("a token that was revoked", func(t *testing.T) {
		if err := revokeAll(ctx, abroad); err != nil {
			t.Fatal(err)
		}
		_, err := admin.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: revoked})
		if client.ReasonOf(err) != "TOKEN_INVALID" {
			t.Errorf("the error is %v", err)
		}
		printed(t, client.Explain(err))
	})
	t.Run("in manifests", func(t *testing.T) {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "control-clumsy"},
			StringData: map[string]string{"token": string(flipped)},
		}
		if err := home.client.Create(ctx, s); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { remove(t, home, s) })
		fc := &v1alpha1.ForeignCluster{
			ObjectMeta: metav1.ObjectMeta{Name: abroadName},
			Spec:       v1alpha1.ForeignClusterSpec{JoinToken: &v1alpha1.SecretKey{Name: s.Name}},
		}
		if err := home.client.Create(ctx, fc); err != nil {
			t.Fatal(err)
		}
		if err := trustedIs(ctx, home, soon, "TokenMalformed"); err != nil {
			t.Fatal(err)
		}
		if err := home.get(ctx, fc.Name, fc); err != nil {
			t.Fatal(err)
		}
		status, err := json.Marshal(fc.Status)
		if err != nil {
			t.Fatal(err)
		}
		printed(t, string(status))
	})
	t.Run("in the logs", leaked)
}

// printed fails the test if a text that is printed or returned has a secret in it.
func printed(t *testing.T, text string) {
	t.Helper()
	found, err := world.secrets.Find("the answer", strings.NewReader(text))
	if err != nil {
		t.Error(err)
	}
	for _, f := range found {
		t.Errorf("%s: %s", f, mask(text))
	}
}

// mask keeps a secret that was found out of the test's own log.
func mask(text string) string {
	return fmt.Sprintf("%d characters, beginning with %.40q", len(text), text)
}

func revokeAll(ctx context.Context, c *cluster) error {
	_, err := call(ctx, c, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.ListTokensResponse, error) {
		tokens, err := a.ListTokens(ctx, &ententev1.ListTokensRequest{})
		if err != nil {
			return nil, err
		}
		for _, token := range tokens.GetTokens() {
			if token.GetRedeemedBy() != "" {
				continue
			}
			if _, err := a.RevokeToken(ctx, &ententev1.RevokeTokenRequest{Name: token.GetName()}); err != nil {
				return nil, err
			}
		}
		return tokens, nil
	})
	return err
}

// TestTheSearchForSecretsCoversTheRightFiles: the logs that are looked through are
// those of the agents that used the secrets.
func TestTheSearchForSecretsCoversTheRightFiles(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	before := world.secrets.Count()
	if err := join(ctx, home, abroad); err != nil {
		t.Fatal(err)
	}
	if n := world.secrets.Count() - before; n < 2 {
		t.Errorf("a token added %d secrets, want its text and its secret", n)
	}
	if before < 6 {
		t.Errorf("%d secrets were known before, want each cluster's identity key and both sides' credentials at least", before)
	}
	for _, c := range []*cluster{home, abroad} {
		// What may be in a log is: the cluster's ID and the method.
		text, err := os.ReadFile(c.log)
		if err != nil || !strings.Contains(string(text), idOf(t, c)) {
			t.Errorf("the log of %s has not its own ID, %v", c.name, err)
		}
	}
	secret := &corev1.Secret{}
	secret.Namespace = systemNamespace
	if err := home.get(ctx, "entente-identity", secret); err != nil {
		t.Fatal(err)
	}
	// The identity key would be found, in each of these forms.
	for _, text := range []string{string(secret.Data["identity.pem"]), base64.StdEncoding.EncodeToString(secret.Data["identity.pem"])} {
		if found, err := world.secrets.Find("x", strings.NewReader(text)); err != nil || len(found) == 0 {
			t.Errorf("the identity key would not be found: %v", err)
		}
	}
}
