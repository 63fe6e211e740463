package lab

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/entente-dev/entente/integration/eventually"
)

// fieldManager names the lab as the owner of the objects that it applies.
const fieldManager = "entente-lab"

// apiAnswerMost limits how much of an API server's response is read.
const apiAnswerMost = 64 << 20

// apiClient speaks to one API server: the few plain requests that bringing a
// cluster up takes.
type apiClient struct {
	server string
	http   *http.Client
}

func newAPIClient(c credentials) (*apiClient, error) {
	t, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	return &apiClient{
		server: c.Server,
		http: &http.Client{
			Timeout:   30 * time.Second,
			Transport: &http.Transport{TLSClientConfig: t, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second},
		},
	}, nil
}

// readKubeconfig reads back a kubeconfig that this package wrote.
func readKubeconfig(file string) (credentials, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return credentials{}, err
	}
	var k struct {
		Clusters []struct {
			Cluster struct {
				Server string
				CA     string `json:"certificate-authority-data"`
			}
		}
		Users []struct {
			User struct {
				Cert string `json:"client-certificate-data"`
				Key  string `json:"client-key-data"`
			}
		}
	}
	if err := json.Unmarshal(b, &k); err != nil {
		return credentials{}, fmt.Errorf("read %s: %w", file, err)
	}
	if len(k.Clusters) != 1 || len(k.Users) != 1 {
		return credentials{}, fmt.Errorf("read %s: want one cluster and one user", file)
	}
	c := credentials{Server: k.Clusters[0].Cluster.Server}
	for _, f := range []struct {
		to   *[]byte
		from string
	}{{&c.CA, k.Clusters[0].Cluster.CA}, {&c.Cert, k.Users[0].User.Cert}, {&c.Key, k.Users[0].User.Key}} {
		if *f.to, err = base64.StdEncoding.DecodeString(f.from); err != nil {
			return credentials{}, fmt.Errorf("read %s: %w", file, err)
		}
	}
	return c, nil
}

func openAPI(kubeconfig string) (*apiClient, error) {
	c, err := readKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	return newAPIClient(c)
}

// apiError is an answer of the API server that is not a success.
type apiError struct {
	Code    int
	Message string
}

func (e *apiError) Error() string { return fmt.Sprintf("API server answers %d: %s", e.Code, e.Message) }

// do sends body and decodes the answer into out, unless nil.
func (a *apiClient) do(ctx context.Context, method, path, contentType string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, a.server+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, apiAnswerMost))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		var st struct{ Message string }
		if json.Unmarshal(b, &st) != nil || st.Message == "" {
			st.Message = string(b[:min(len(b), 200)])
		}
		return &apiError{Code: resp.StatusCode, Message: st.Message}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

func (a *apiClient) get(ctx context.Context, path string, out any) error {
	return a.do(ctx, http.MethodGet, path, "", nil, out)
}

// apply sends object (server-side apply) to path.
func (a *apiClient) apply(ctx context.Context, path string, object any) error {
	b, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return a.do(ctx, http.MethodPatch, path+"?force=true&fieldManager="+fieldManager, "application/apply-patch+yaml", b, nil)
}

// applyRetry applies until it works: right after its start an API server has
// neither all namespaces nor all roles.
func (a *apiClient) applyRetry(ctx context.Context, path string, object any) error {
	var last error
	err := eventually.Poll(ctx, 200*time.Millisecond, func() bool {
		last = a.apply(ctx, path, object)
		return last == nil
	})
	if err != nil {
		return fmt.Errorf("apply %s: %w", path, errors.Join(last, err))
	}
	return nil
}

// awaitReady blocks until the API server of the kubeconfig says that it is
// ready, or, if path is not empty, until it has the object there.
func awaitReady(ctx context.Context, kubeconfig, path string) error {
	a, err := openAPI(kubeconfig)
	if err != nil {
		return err
	}
	defer a.http.CloseIdleConnections()
	if path == "" {
		path = "/readyz"
	}
	return eventually.Poll(ctx, 100*time.Millisecond, func() bool { return a.get(ctx, path, nil) == nil })
}

func listens(ctx context.Context, socket string) bool {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
