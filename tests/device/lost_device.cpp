// A library to load before others, which makes a Vulkan device report, from now on, that it is lost: to every submission, or to
// every wait.
#include <vulkan/vulkan.h>

#include <dlfcn.h>

#include <atomic>
#include <cstring>

static std::atomic<bool> is_lost { false };
static std::atomic<int>  n_left { -1 }; // calls until then; negative: never

extern "C" void lose_device(bool now) { is_lost = now; }
extern "C" void lose_device_after(int n_calls) { n_left = n_calls; }

static bool lost() {
    if (n_left >= 0 && n_left-- == 0) {
        is_lost = true;
    }
    return is_lost;
}

static PFN_vkQueueSubmit    next_submit;
static PFN_vkWaitForFences  next_wait;
static PFN_vkGetFenceStatus next_status;

static VkResult submit(VkQueue queue, uint32_t n, const VkSubmitInfo * infos, VkFence fence) {
    if (!lost()) {
        return next_submit(queue, n, infos, fence);
    }
    vkQueueWaitIdle(queue); // a lost device does not compute any more
    return VK_ERROR_DEVICE_LOST;
}

static VkResult wait(VkDevice device, uint32_t n, const VkFence * fences, VkBool32 all, uint64_t timeout) {
    if (!lost()) {
        return next_wait(device, n, fences, all, timeout);
    }
    vkDeviceWaitIdle(device);
    return VK_ERROR_DEVICE_LOST;
}

static VkResult status(VkDevice device, VkFence fence) {
    if (!lost()) {
        return next_status(device, fence);
    }
    vkDeviceWaitIdle(device);
    return VK_ERROR_DEVICE_LOST;
}

static PFN_vkVoidFunction replaced(const char * name, PFN_vkVoidFunction found) {
    if (found && !strcmp(name, "vkQueueSubmit")) {
        next_submit = (PFN_vkQueueSubmit) found;
        return (PFN_vkVoidFunction) submit;
    }
    if (found && !strcmp(name, "vkWaitForFences")) {
        next_wait = (PFN_vkWaitForFences) found;
        return (PFN_vkVoidFunction) wait;
    }
    if (found && !strcmp(name, "vkGetFenceStatus")) {
        next_status = (PFN_vkGetFenceStatus) found;
        return (PFN_vkVoidFunction) status;
    }
    return found;
}

static PFN_vkVoidFunction of_device(VkDevice device, const char * name) {
    static const auto next = (PFN_vkGetDeviceProcAddr) dlsym(RTLD_NEXT, "vkGetDeviceProcAddr");
    return replaced(name, next(device, name));
}

extern "C" VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char * name) {
    static const auto next = (PFN_vkGetInstanceProcAddr) dlsym(RTLD_NEXT, "vkGetInstanceProcAddr");
    if (!strcmp(name, "vkGetDeviceProcAddr")) {
        return (PFN_vkVoidFunction) of_device;
    }
    return replaced(name, next(instance, name));
}
