package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// Clerk is a user of the admin API with a bearer token, from inside the cluster.
type Clerk struct {
	side *Side
	// Name of its ServiceAccount in the namespace default, and of its binding.
	Name  string
	Token string
	// Address is the admin API's, CA its certificate authority, PEM.
	Address string
	CA      []byte
}

// adminService is the name in the certificate of the admin API.
const adminService = "entente-agent." + SystemNamespace + ".svc"

// NewClerk makes a ServiceAccount, binds it to a ClusterRole unless that is empty,
// and gets it a token. Remove it with Dismiss.
func (s *Side) NewClerk(ctx context.Context, name, clusterRole string) (*Clerk, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: name}}
	if err := s.Client.Create(ctx, account); ctrlclient.IgnoreAlreadyExists(err) != nil {
		return nil, err
	}
	if clusterRole != "" {
		if err := s.Client.Create(ctx, clerkBinding(name, clusterRole)); ctrlclient.IgnoreAlreadyExists(err) != nil {
			return nil, err
		}
	}
	token, err := s.Kube.CoreV1().ServiceAccounts(corev1.NamespaceDefault).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("get a token for %s: %w", name, err)
	}
	service, err := s.Kube.CoreV1().Services(SystemNamespace).Get(ctx, "entente-agent", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("find the admin API: %w", err)
	}
	ca, err := s.Kube.CoreV1().ConfigMaps(SystemNamespace).Get(ctx, "entente-ca", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("find the admin API's authority: %w", err)
	}
	return &Clerk{
		side: s, Name: name, Token: token.Status.Token, CA: []byte(ca.Data["ca.crt"]),
		Address: net.JoinHostPort(service.Spec.ClusterIP, "7444"),
	}, nil
}

func clerkBinding(name, clusterRole string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: corev1.NamespaceDefault, Name: name}},
	}
}

// Dismiss removes the clerk.
func (c *Clerk) Dismiss(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: c.Name}}
	return errors.Join(
		ctrlclient.IgnoreNotFound(c.side.Client.Delete(ctx, account)),
		ctrlclient.IgnoreNotFound(c.side.Client.Delete(ctx, clerkBinding(c.Name, ""))),
	)
}

// Get asks the REST API, from the node's network.
func (c *Clerk) Get(ctx context.Context, path string) (status int, body []byte, err error) {
	return c.GetFrom(ctx, c.Address, adminService, path)
}

// GetFrom asks the server at an address, which has to have a certificate for a name.
func (c *Clerk) GetFrom(ctx context.Context, address, name, path string) (status int, body []byte, err error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.CA) {
		return 0, nil, errors.New("the admin API's authority cannot be read")
	}
	client := &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return c.side.DialOnNode(ctx, "tcp", address)
			},
			TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS13},
			DisableKeepAlives: true,
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+name+path, nil)
	if err != nil {
		return 0, nil, err
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	return resp.StatusCode, body, err
}

// Grpcurl runs grpcurl against the admin API, from the node's network: with data,
// unless it is empty, and verb and symbol as grpcurl takes them.
func (c *Clerk) Grpcurl(ctx context.Context, data string, args ...string) (string, error) {
	dir, err := os.MkdirTemp("", "entente-clerk")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ca := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(ca, c.CA, 0o600); err != nil {
		return "", err
	}
	argv := []string{
		c.side.world.Grpcurl, "-cacert", ca, "-authority", adminService, "-max-time", "10",
		"-H", "Authorization: Bearer " + c.Token,
	}
	if data != "" {
		argv = append(argv, "-d", data)
	}
	return c.side.OnNode(ctx, append(append(argv, c.Address), args...)...)
}
