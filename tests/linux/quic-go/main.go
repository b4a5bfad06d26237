// HTTP/3 by quic-go, a peer of ours: fetches and sends, or serves a folder.
//
//	quic-go get  CA ADDRESS URL FILE [COUNT]   fetches URL from ADDRESS, COUNT times at once; FILE gets the first
//	quic-go put  CA ADDRESS URL FILE           sends FILE there, and prints the answer
//	quic-go serve CERTIFICATE KEY ADDRESS FOLDER
//
// The key is changed after the first hundred packets, as quic-go does.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "quic-go:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) >= 5 && args[0] == "get":
		count := 1
		if len(args) > 5 {
			fmt.Sscan(args[5], &count)
		}
		return get(client(args[1], args[2]), args[3], args[4], count)
	case len(args) == 5 && args[0] == "put":
		return put(client(args[1], args[2]), args[3], args[4])
	case len(args) == 5 && args[0] == "serve":
		return serve(args[1], args[2], args[3], args[4])
	}
	return fmt.Errorf("get, put or serve: see the head of main.go")
}

// Whatever the name in a URL, the host is at the address.
func client(ca, address string) *http.Client {
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(ca)
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		fmt.Fprintln(os.Stderr, "quic-go: no certificate in", ca)
		os.Exit(1)
	}
	dial := func(ctx context.Context, _ string, tls *tls.Config, config *quic.Config) (*quic.Conn, error) {
		return quic.DialAddr(ctx, address, tls, config)
	}
	return &http.Client{Transport: &http3.Transport{Dial: dial, TLSClientConfig: &tls.Config{RootCAs: roots}}}
}

func get(client *http.Client, url, file string, count int) error {
	defer client.Transport.(*http3.Transport).Close()
	done := make(chan error, count)
	for at := range count {
		go func() {
			answer, err := client.Get(url)
			if err != nil {
				done <- err
				return
			}
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				done <- fmt.Errorf("%s: %s", url, answer.Status)
				return
			}
			into := io.Discard
			if at == 0 {
				out, err := os.Create(file)
				if err != nil {
					done <- err
					return
				}
				defer out.Close()
				into = out
			}
			sum := sha256.New()
			bytes, err := io.Copy(io.MultiWriter(into, sum), answer.Body)
			fmt.Printf("%d %x\n", bytes, sum.Sum(nil))
			done <- err
		}()
	}
	for range count {
		if err := <-done; err != nil {
			return err
		}
	}
	return nil
}

func put(client *http.Client, url, file string) error {
	defer client.Transport.(*http3.Transport).Close()
	body, err := os.Open(file)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPut, url, body)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

// Serves files, and answers what is sent with its size and SHA-256.
func serve(certificate, key, address, folder string) error {
	files := http.FileServer(http.Dir(folder))
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			files.ServeHTTP(w, r)
			return
		}
		sum := sha256.New()
		bytes, err := io.Copy(sum, r.Body)
		if err != nil {
			return
		}
		fmt.Fprintf(w, "%d %x\n", bytes, sum.Sum(nil))
	})
	server := http3.Server{Addr: address, Handler: handler}
	fmt.Println("serves")
	return server.ListenAndServeTLS(certificate, key)
}
