package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// account is where clients in a cluster look for what leads to its API server.
const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

// api asks the API server for a path, in which NAMESPACE is replaced by the pod's own, and prints
// the status and the body of the response. A watch ends when the API server ends it, and after a
// while.
func api(ctx context.Context, args []string) error {
	limit := 20 * time.Second
	if len(args) > 2 && args[0] == "-w" {
		var err error
		if limit, err = time.ParseDuration(args[1]); err != nil {
			return err
		}
		args = args[2:]
	}
	if len(args) != 1 {
		return errors.New(usage)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var read [3]string
	for i, file := range []string{"ca.crt", "namespace", "token"} {
		b, err := os.ReadFile(account + file)
		if err != nil {
			return err
		}
		read[i] = string(b)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(read[0])) {
		return errors.New("ca.crt has no certificate")
	}
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	}}
	host := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+strings.ReplaceAll(args[0], "NAMESPACE", read[1]), http.NoBody) //nolint:gosec // the caller chooses it
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+read[2])
	begin := time.Now()
	response, err := client.Do(request) //nolint:gosec // the caller chooses it
	if err != nil {
		return err
	}
	defer response.Body.Close()
	out := os.Stdout
	fmt.Fprintln(out, response.StatusCode)
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		fmt.Fprint(out, line)
		if err != nil {
			fmt.Fprintf(out, "\nended after %.1f s: %v\n", time.Since(begin).Seconds(), err)
			if errors.Is(err, io.EOF) || ctx.Err() == nil {
				return nil
			}
			return err
		}
	}
}
