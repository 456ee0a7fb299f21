#include "kvnet/http_get.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>

#include "base/clock.h"

namespace cairnfs::kvnet {
namespace {

using std::chrono::milliseconds;

struct EndRequest {
  void operator()(CURL* request) const { curl_easy_cleanup(request); }
};
struct EndRequests {
  void operator()(CURLM* requests) const { curl_multi_cleanup(requests); }
};

constexpr milliseconds kPollMax{1'000};

Error NoAnswer(const std::string& why) { return MakeError(ErrorCode::kUnavailable, why); }

bool IsCurlReady() {
  static const bool is_ready = [] {
    signal(SIGPIPE, SIG_IGN);  // OpenSSL sends by write(2)
    return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  }();
  return is_ready;
}

// Fewer than `count` tell libcurl to end the request.
size_t TakeBody(char* bytes, size_t /*one*/, size_t count, void* to) {
  auto& body = *static_cast<std::string*>(to);
  if (body.size() + count > kHttpBytesMax) return 0;
  body.append(bytes, count);
  return count;
}

// One request of libcurl. It takes nothing from the environment.
class Request {
 public:
  Request(const std::string& url, const rpc::Tls& tls) : request_(curl_easy_init()) {
    if (request_ == nullptr) return;
    is_good_ = true;
    Set(CURLOPT_ERRORBUFFER, why_);
    Set(CURLOPT_URL, url.c_str());
    Set(CURLOPT_PROTOCOLS_STR, tls.enabled() ? "https" : "http");
    Set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
    Set(CURLOPT_FOLLOWLOCATION, 0L);
    Set(CURLOPT_PROXY, "");  // not that of the environment
    Set(CURLOPT_NOSIGNAL, 1L);
    Set(CURLOPT_QUICK_EXIT, 1L);  // the end waits for no name server
    Set(CURLOPT_WRITEFUNCTION, &TakeBody);
    Set(CURLOPT_WRITEDATA, &body_);
    if (tls.enabled()) SetTls(tls.files());
  }
  Request(const Request&) = delete;

  // The body of its answer, once `requests`, of which it is the only one, has run.
  Result<std::string> Run(const Context& context, CURLM* requests) {
    if (!is_good_ || curl_multi_add_handle(requests, request_.get()) != CURLM_OK)
      return NoAnswer("libcurl cannot do that");
    Drive(context, requests);
    int left = 0;
    const CURLMsg* ended = curl_multi_info_read(requests, &left);
    const CURLcode result = ended == nullptr ? CURLE_OPERATION_TIMEDOUT : ended->data.result;
    curl_multi_remove_handle(requests, request_.get());
    if (ended == nullptr) return NoAnswer("no answer in time");
    if (result == CURLE_WRITE_ERROR) return NoAnswer("the answer is too long");
    if (result != CURLE_OK) return NoAnswer(why_[0] != '\0' ? why_ : curl_easy_strerror(result));
    long code = 0;
    curl_easy_getinfo(request_.get(), CURLINFO_RESPONSE_CODE, &code);
    if (code != 200) return NoAnswer("the answer is HTTP " + std::to_string(code));
    return std::move(body_);
  }

 private:
  template <typename Value>
  void Set(CURLoption option, Value value) {
    is_good_ = is_good_ && curl_easy_setopt(request_.get(), option, value) == CURLE_OK;
  }
  void SetTls(const rpc::TlsFiles& files) {
    Set(CURLOPT_SSLVERSION, long{CURL_SSLVERSION_TLSv1_2});
    Set(CURLOPT_CAINFO, files.authority.c_str());
    Set(CURLOPT_CAPATH, static_cast<const char*>(nullptr));  // no authority of the machine
    if (files.certificate.empty()) return;
    Set(CURLOPT_SSLCERT, files.certificate.c_str());
    Set(CURLOPT_SSLKEY, files.key.c_str());
  }
  // Until it has ended, or the context expired.
  static void Drive(const Context& context, CURLM* requests) {
    const Context::OnStop wake(context, [requests] { curl_multi_wakeup(requests); });
    for (int running = 1; !context.Expired();) {
      if (curl_multi_perform(requests, &running) != CURLM_OK || running == 0) return;
      const auto left = std::chrono::ceil<milliseconds>(std::min<Clock::duration>(
          context.deadline() == Clock::time_point::max() ? kPollMax : context.deadline() - Clock::Now(), kPollMax));
      curl_multi_poll(requests, nullptr, 0, static_cast<int>(std::max<int64_t>(left.count(), 0)), nullptr);
    }
  }

  bool is_good_ = false;
  std::string body_;
  char why_[CURL_ERROR_SIZE] = "";
  const std::unique_ptr<CURL, EndRequest> request_;  // ends before what it points at
};

}  // namespace

Result<std::string> HttpGet(const Context& context, const std::string& address, const std::string& path,
                            const rpc::Tls& tls) {
  if (!IsCurlReady()) return NoAnswer("libcurl does not start");
  const std::unique_ptr<CURLM, EndRequests> requests(curl_multi_init());
  if (requests == nullptr) return NoAnswer("no memory");
  return Request((tls.enabled() ? "https://" : "http://") + address + path, tls).Run(context, requests.get());
}

}  // namespace cairnfs::kvnet
